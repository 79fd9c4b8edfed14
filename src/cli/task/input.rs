//! What a command reads: payloads and batches, bounded in size.
//!
//! Standard input is read by a thread of its own, which simply ends with the
//! process: a read cannot be taken back. There is no limit in time for who has
//! begun to write, because whoever writes may be slow for good reasons, but what
//! is waited for is said; memory is what is bounded. A payload of which nothing
//! at all comes is given up: nobody is there who writes.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::Path;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::cli::error::CliError;
use crate::cli::output::remark;
use crate::cli::units::spoken;
use crate::protocol::task::Payload;

/// How long a payload may take to come.
#[derive(Clone, Copy)]
struct Patience {
    /// To end, before it is said that it is waited for.
    silent: Duration,
    /// To begin, where no person is asked for it.
    until_it_begins: Option<Duration>,
}

/// With standard input.
const PATIENCE: Patience = Patience { silent: Duration::from_secs(3), until_it_begins: Some(Duration::from_secs(60)) };

/// How many lines are read ahead.
const LINES_AHEAD: usize = 256;

/// What a line may hold besides its payload.
const ROOM_FOR_OPTIONS: u64 = 64 * 1024;

/// Where a batch comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Stdin,
    File(String),
}

impl Origin {
    pub(super) fn of(word: &str) -> Self {
        if word == "-" { Self::Stdin } else { Self::File(word.to_owned()) }
    }
}

fn open(path: &str) -> Result<File, CliError> {
    let refused = |error: std::io::Error| CliError::usage(format!("the file {path} cannot be read: {error}"));
    let file = File::open(Path::new(path)).map_err(refused)?;
    match file.metadata() {
        Ok(facts) if facts.is_dir() => Err(CliError::usage(format!("{path} is a directory: name a file"))),
        _ => Ok(file),
    }
}

/// Says on a terminal that it is its turn.
fn invite(what: &str) {
    if std::io::stdin().is_terminal() {
        remark(&format!("Reading {what} from the terminal; end it with Ctrl-D."));
    }
}

/// The payload that an argument names: JSON, `@FILE`, or `-` for standard input.
pub(in crate::cli) async fn payload(word: &str, limit: u64) -> Result<Payload, CliError> {
    let (text, place) = match word.strip_prefix('@') {
        Some(path) => (read_whole(open(path)?, path, limit)?, format!("the file {path}")),
        None if word == "-" => {
            invite("the payload");
            let is_typed = std::io::stdin().is_terminal();
            let patience = if is_typed { Patience { until_it_begins: None, ..PATIENCE } } else { PATIENCE };
            let text = read_awaited(std::io::stdin(), limit, patience).await;
            (text?, "standard input".to_owned())
        }
        None => (word.to_owned(), "--payload".to_owned()),
    };
    Payload::from_json(text.trim()).map_err(|error| CliError::usage(format!("{error} (from {place})")))
}

/// A text from standard input, which may be long in coming. If it does not even begin, it is given up.
async fn read_awaited(from: impl Read + Send + 'static, limit: u64, patience: Patience) -> Result<String, CliError> {
    let asked = Instant::now();
    let (begins, begun) = oneshot::channel();
    let (sender, mut receiver) = oneshot::channel();
    // Whoever waits may be gone by then.
    std::thread::spawn(move || {
        drop(sender.send(read_whole(Heard { from, begins: Some(begins) }, "standard input", limit)))
    });
    let read = match tokio::time::timeout(patience.silent, &mut receiver).await {
        Ok(read) => read,
        Err(_) => {
            remark("note: standard input has not ended yet; the payload is what comes before its end");
            tokio::select! {
                read = &mut receiver => read,
                given_up = nothing(begun, asked, patience.until_it_begins) => return Err(given_up),
            }
        }
    };
    read.map_err(|_| CliError::failed("standard input could not be read"))?
}

/// Completes when that time is over and nothing has begun.
async fn nothing(begun: oneshot::Receiver<()>, since: Instant, patience: Option<Duration>) -> CliError {
    if let Some(patience) = patience
        && tokio::time::timeout_at(since + patience, begun).await.is_err()
    {
        let limit = spoken(patience);
        return CliError::usage(format!(
            "nothing came on standard input for {limit}: write the payload there, or give it as JSON or as @FILE"
        ));
    }
    std::future::pending().await
}

/// Says when the first of it has come.
struct Heard<R> {
    from: R,
    begins: Option<oneshot::Sender<()>>,
}

impl<R: Read> Read for Heard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.from.read(buffer)?;
        if let Some(begins) = self.begins.take() {
            // Nobody may be waiting any more.
            let _ = begins.send(());
        }
        Ok(length)
    }
}

/// A text of up to so many bytes.
fn read_whole(from: impl Read, place: &str, limit: u64) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let refused = |error: std::io::Error| CliError::failed(format!("{place} cannot be read: {error}"));
    from.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(refused)?;
    if bytes.len() as u64 > limit {
        return Err(CliError::usage(format!(
            "the payload from {place} has more than the {limit} bytes that this queue takes: store it elsewhere and \
             send a reference, or raise the queue's limit"
        )));
    }
    String::from_utf8(bytes).map_err(|_| CliError::usage(format!("the payload from {place} is not UTF-8 text")))
}

/// A line of a batch, and its number from 1.
pub(super) type Numbered = (u64, String);

/// The lines of a batch that are not blank, as they come.
pub(super) fn lines(
    origin: &Origin,
    payload_limit: u64,
) -> Result<mpsc::Receiver<Result<Numbered, CliError>>, CliError> {
    let reader: Box<dyn BufRead + Send> = match origin {
        Origin::Stdin => {
            invite("tasks, a line of JSON each,");
            Box::new(BufReader::new(std::io::stdin()))
        }
        Origin::File(path) => Box::new(BufReader::new(open(path)?)),
    };
    let (sender, receiver) = mpsc::channel(LINES_AHEAD);
    let longest = payload_limit.saturating_add(ROOM_FOR_OPTIONS);
    std::thread::spawn(move || {
        for line in (Lines { reader, number: 0, longest, over: false }) {
            // Nobody listens any more: the command has ended.
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

struct Lines {
    reader: Box<dyn BufRead + Send>,
    number: u64,
    longest: u64,
    over: bool,
}

impl Iterator for Lines {
    type Item = Result<Numbered, CliError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.over {
            match self.line() {
                Ok(None) => return None,
                Ok(Some(line)) if line.trim().is_empty() => {}
                Ok(Some(line)) => return Some(Ok((self.number, line))),
                Err(error) => {
                    self.over = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

impl Lines {
    fn line(&mut self) -> Result<Option<String>, CliError> {
        let (mut bytes, number) = (Vec::new(), self.number + 1);
        let refused = |what: &dyn std::fmt::Display| CliError::usage(format!("line {number}: {what}"));
        let read = self.reader.by_ref().take(self.longest + 1).read_until(b'\n', &mut bytes);
        if read.map_err(|error| refused(&format!("it cannot be read: {error}")))? == 0 {
            return Ok(None);
        }
        self.number = number;
        if bytes.len() as u64 > self.longest {
            return Err(refused(&format!(
                "it has more than {} bytes, which no task of this queue needs",
                self.longest
            )));
        }
        String::from_utf8(bytes).map(Some).map_err(|_| refused(&"it is not UTF-8 text"))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn a_payload_of_which_nothing_comes_is_given_up_and_one_that_has_begun_is_waited_for() {
        let short = Duration::from_millis(20);
        let patience = Patience { silent: short, until_it_begins: Some(short * 2) };
        let (reader, _silent) = std::io::pipe().expect("a pipe");
        let given_up = read_awaited(reader, 100, patience).await.expect_err("nobody writes");
        assert!(given_up.to_string().contains("nothing came on standard input for 40ms"), "{given_up}");

        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(b"[1, ").expect("it is read");
        let waiting = tokio::spawn(read_awaited(reader, 100, patience));
        tokio::time::sleep(short * 10).await;
        writer.write_all(b"2]").expect("it is still read");
        drop(writer);
        assert_eq!(waiting.await.expect("no panic").expect("read"), "[1, 2]");
    }

    fn of(text: &'static str, longest: u64) -> Vec<Result<Numbered, CliError>> {
        Lines { reader: Box::new(text.as_bytes()), number: 0, longest, over: false }.collect()
    }

    #[test]
    fn blank_lines_count_and_are_left_out() {
        let read: Vec<_> = of("{}\n\n  \n{\"a\":1}", 100).into_iter().map(|line| line.expect("short")).collect();
        assert_eq!(read, [(1, "{}\n".to_owned()), (4, "{\"a\":1}".to_owned())]);
    }

    #[test]
    fn a_line_without_end_is_given_up_at_the_bound() {
        let read = of("{}\n{\"a\":\"xxxxxxxxxxxxxxxxxxxxxxxxx", 10);
        assert_eq!(read.len(), 2);
        assert!(read[1].as_ref().expect_err("too long").to_string().starts_with("line 2: it has more than 10 bytes"));
    }
}
