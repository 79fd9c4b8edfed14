//! The README's block in Rust is what is compiled here.

use super::markdown::Document;

/// Its lines, between the two comments. It is compiled alone: run, it would want a Redis on the port that everybody's has.
#[allow(dead_code, reason = "its text is what counts, and that it compiles")]
async fn use_it_from_rust() -> anyhow::Result<()> {
    // The block begins.
    use std::time::Duration;
    use windlass::{NewTask, Producer};

    let producer = Producer::connect("redis://127.0.0.1:6379", "shop/emails".parse()?)?;
    let mut task = NewTask::new("send".parse()?, serde_json::json!({"to": "ada@example.com"}));
    task.idempotency_key = Some("welcome-ada".parse()?); // the same key again is the same task
    let enqueued = producer.enqueue(task).await?;
    let done = producer.wait(&enqueued.id, Duration::from_secs(30)).await?;
    // The block ends.
    anyhow::ensure!(done.is_some(), "it is final");
    Ok(())
}

/// How text is laid out does not matter.
fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

#[test]
fn every_block_in_rust_is_one_that_is_compiled() {
    let (_, here) = include_str!("rust.rs").split_once("// The block begins.\n").expect("it begins");
    let (here, _) = here.split_once("// The block ends.\n").expect("it ends");
    let all = super::markdown::all();
    let shown = |document: &Document| document.blocks.iter().filter(|block| block.language == "rust").count();
    assert_eq!(all.iter().map(shown).sum::<usize>(), 1, "of another block nobody knows whether it compiles");
    let block = all.iter().flat_map(|document| &document.blocks).find(|block| block.language == "rust").expect("it");
    assert_eq!(words(&block.text), words(here), "{}", block.place);
}
