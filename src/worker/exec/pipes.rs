//! What goes into a process and what comes out of it, all at once.
//!
//! Reading and writing run together, so that no size of either can block the
//! other; what is kept of the output is bounded.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio_util::sync::CancellationToken;

use crate::broker::MAX_ERROR_BYTES;
use crate::protocol::names::TaskId;

const CHUNK: usize = 16 * 1024;

/// What is kept of a process's output.
pub(super) struct Output {
    /// Standard output, up to the bound.
    pub(super) stdout: Vec<u8>,
    /// The end of standard error.
    pub(super) stderr: Vec<u8>,
    /// Set when standard output went over the bound.
    pub(super) overflow: CancellationToken,
    /// The most of standard output that is kept.
    pub(super) bound: usize,
}

impl Output {
    /// Nothing yet, and no more than `bound` bytes of standard output later.
    pub(super) fn new(bound: usize) -> Self {
        Self { stdout: Vec::new(), stderr: Vec::new(), overflow: CancellationToken::new(), bound }
    }
}

/// A process's pipes.
pub(super) struct Pipes {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

impl Pipes {
    /// Takes a process's pipes.
    pub(super) fn of(child: &mut Child) -> Self {
        Self { stdin: child.stdin.take(), stdout: child.stdout.take(), stderr: child.stderr.take() }
    }

    /// Writes the input and reads all output until every pipe is closed.
    pub(super) async fn pump(self, input: String, task: TaskId, output: &mut Output) {
        let Output { stdout, stderr, overflow, bound } = output;
        let reading = async {
            if let Some(pipe) = self.stdout {
                read_up_to(pipe, stdout, *bound, overflow).await;
            }
        };
        let listening = async {
            if let Some(pipe) = self.stderr {
                read_tail(pipe, stderr, task).await;
            }
        };
        let writing = async {
            if let Some(mut pipe) = self.stdin {
                // A handler that does not want its input is welcome not to read it.
                let _ = pipe.write_all(input.as_bytes()).await;
            }
        };
        tokio::join!(writing, reading, listening);
    }
}

/// Reads to the end, or until there is more than wanted.
async fn read_up_to(mut pipe: impl AsyncRead + Unpin, kept: &mut Vec<u8>, bound: usize, overflow: &CancellationToken) {
    let mut chunk = vec![0; CHUNK];
    // A pipe that cannot be read is at its end.
    while let Ok(read @ 1..) = pipe.read(&mut chunk).await {
        if kept.len() + read > bound {
            overflow.cancel();
            return;
        }
        kept.extend_from_slice(&chunk[..read]);
    }
}

/// Reads to the end and keeps only that; each line also goes to the log.
async fn read_tail(mut pipe: impl AsyncRead + Unpin, kept: &mut Vec<u8>, task: TaskId) {
    let mut chunk = vec![0; CHUNK];
    let mut log = LineLog { task, begun: Vec::new() };
    while let Ok(read @ 1..) = pipe.read(&mut chunk).await {
        log.write(&chunk[..read]);
        kept.extend_from_slice(&chunk[..read]);
        // One byte more than is kept tells that something was cut.
        let excess = kept.len().saturating_sub(MAX_ERROR_BYTES + 1);
        kept.drain(..excess);
    }
    log.end();
}

/// Passes a handler's lines on to the worker's log, so that they are seen also
/// when the task succeeds.
struct LineLog {
    task: TaskId,
    begun: Vec<u8>,
}

impl LineLog {
    /// A longer line is logged in pieces.
    const LONGEST: usize = MAX_ERROR_BYTES;

    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= Self::LONGEST {
                self.end();
            }
        }
    }

    fn end(&mut self) {
        let line = String::from_utf8_lossy(&self.begun);
        let line = line.trim_end();
        if !line.is_empty() {
            tracing::info!(target: "windlass::handler", task_id = %self.task, line, "handler wrote");
        }
        self.begun.clear();
    }
}
