//! `windlass install`: puts the program where another container finds it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::CliError;

/// Arguments of `windlass install`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where to put it.
    #[arg(value_name = "FILE")]
    to: PathBuf,
}

/// Copies the program that runs.
pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::failed(format!("{} cannot be written: {error}", args.to.display()));
    copy(Path::new("/proc/self/exe"), &args.to).map_err(failed)
}

/// Beside it first: whoever finds it finds all of it, also after a start that was cut off.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let beside = to.with_extension("new");
    fs::copy(from, &beside)?;
    // Whoever runs it is another user than the one who put it there.
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755))?;
    fs::rename(&beside, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_is_whole_and_can_be_run_by_anybody() {
        let folder = tempfile::tempdir().expect("a folder");
        let to = folder.path().join("windlass");
        for _ in 0..2 {
            run(&Args { to: to.clone() }).expect("installed");
        }
        let own = fs::read("/proc/self/exe").expect("readable");
        assert!(fs::read(&to).expect("there") == own);
        assert_eq!(fs::metadata(&to).expect("there").permissions().mode() & 0o777, 0o755);
        let error = run(&Args { to: "/nowhere/windlass".into() }).expect_err("no such folder");
        assert!(error.to_string().contains("/nowhere/windlass"));
    }
}
