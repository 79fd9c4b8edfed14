//! `windlass crd`: the custom resources' definitions as YAML.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::crd::{self, Kind};

/// Print the CustomResourceDefinitions as YAML.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  windlass crd | kubectl apply --server-side -f -\n  windlass crd --dir crds")]
pub struct Args {
    /// Write a file for each definition into this directory instead.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Prints or writes them.
pub(super) fn run(args: &Args) -> Result<()> {
    let Some(dir) = &args.dir else {
        let documents = Kind::ALL.map(crd::yaml).join("---\n");
        std::io::stdout().write_all(documents.as_bytes())?;
        return Ok(());
    };
    std::fs::create_dir_all(dir).with_context(|| format!("{} cannot be made", dir.display()))?;
    for kind in Kind::ALL {
        let path = dir.join(kind.file_name());
        std::fs::write(&path, crd::yaml(kind)).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(())
}
