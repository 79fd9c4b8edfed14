//! Dead letters as people work with them, on a real Redis and with or without a database.

#![allow(clippy::print_stdout, reason = "what was seen is part of the result")]

mod support;

mod dead_letters {
    mod discarding;
    mod reading;
    mod replaying;
    mod rig;
}
