//! Placeholder replaced below.
/// x
#[derive(Debug, clap::Args)]
pub struct Args {}
/// x
pub async fn run(_: Args) -> anyhow::Result<()> {
    Ok(())
}
