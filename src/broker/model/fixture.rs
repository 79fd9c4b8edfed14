//! A provisioned model and short words for what tests do with it.
