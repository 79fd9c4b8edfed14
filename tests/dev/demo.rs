//! The demo, whole.

use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_demo_ends_well_and_every_task_as_it_should() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo/run.sh");
    let output = Command::new(script)
        .env("WINDLASS", env!("CARGO_BIN_EXE_windlass"))
        // This machine may be busy.
        .env("DEMO_LIMIT", "240")
        .stdin(Stdio::null())
        .output()
        .expect("the demo runs");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(said.contains("8 tasks succeeded") && said.contains("ftp.example.com refuses"), "{said}");
    assert!(!said.contains('\x1b'), "no colours without a terminal");
}
