//! The `windlass` binary: parses the command line and runs the role that it names.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    // Redis and HTTP both speak TLS through it. It can only be refused where there is one already.
    drop(rustls::crypto::ring::default_provider().install_default());
    windlass::cli::main(std::env::args_os()).await
}
