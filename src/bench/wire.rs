//! The least that a Redis client can be: the bare side of the comparison.
//!
//! Commands go out as they are, many in one write; answers are read in their
//! order. Nothing is retried: in a benchmark a lost connection ends the run.

use std::collections::VecDeque;
use std::io::ErrorKind;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// A word or a string of bytes.
    Text(Vec<u8>),
    /// The command was refused.
    Error(String),
    /// A whole number.
    Number(i64),
    /// Nothing.
    Nil,
    /// Several.
    List(Vec<Reply>),
}

impl Reply {
    /// As text; empty for anything else.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            _ => "",
        }
    }

    /// As a list; empty for anything else.
    pub(super) fn items(&self) -> &[Reply] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// As a number, if it is one.
    pub(super) fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }
}

/// Appends a command as the protocol wants it.
pub(super) fn encode<W: AsRef<[u8]>>(out: &mut Vec<u8>, words: impl ExactSizeIterator<Item = W>) {
    let line = |out: &mut Vec<u8>, mark: u8, number: usize| {
        out.push(mark);
        out.extend_from_slice(number.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    line(out, b'*', words.len());
    for word in words {
        line(out, b'$', word.as_ref().len());
        out.extend_from_slice(word.as_ref());
        out.extend_from_slice(b"\r\n");
    }
}

/// Reads one answer from the front: the answer and its length, or `None` if
/// it is not all there yet.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, mut at) = (&bytes[1..end.max(1)], end + 2);
    let word = || String::from_utf8_lossy(line).into_owned();
    let number = || word().parse::<i64>().with_context(|| format!("Redis sent {:?} where a number belongs", word()));
    let reply = match bytes[0] {
        b'+' => Reply::Text(line.to_vec()),
        b'-' => Reply::Error(word()),
        b':' => Reply::Number(number()?),
        b'$' | b'*' if line == b"-1" => Reply::Nil,
        b'$' => {
            let length = usize::try_from(number()?).context("Redis sent a string of negative length")?;
            if bytes.len() < at + length + 2 {
                return Ok(None);
            }
            let text = bytes[at..at + length].to_vec();
            at += length + 2;
            Reply::Text(text)
        }
        b'*' => {
            let mut items = Vec::new();
            for _ in 0..number()? {
                let Some((item, length)) = parse(&bytes[at..])? else { return Ok(None) };
                items.push(item);
                at += length;
            }
            Reply::List(items)
        }
        other => bail!("Redis sent an answer that begins with {:?}", char::from(other)),
    };
    Ok(Some((reply, at)))
}

/// One connection.
pub(super) struct Wire {
    stream: TcpStream,
    incoming: Vec<u8>,
    /// How much of `incoming` was read already.
    taken: usize,
    outgoing: Vec<u8>,
    /// Where the system puts what it received.
    chunk: Vec<u8>,
}

impl Wire {
    /// Connects to a server on this machine.
    pub(super) async fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.context("the benchmark's Redis was not reached")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, incoming: Vec::new(), taken: 0, outgoing: Vec::new(), chunk: vec![0; 64 * 1024] })
    }

    /// The port at this end, which is how the server names this client.
    pub(super) fn local_port(&self) -> Result<u16> {
        Ok(self.stream.local_addr()?.port())
    }

    /// Sends one command and waits for its answer.
    pub(super) async fn call(&mut self, words: &[&str]) -> Result<Reply> {
        self.send(words).await?;
        match self.next().await? {
            Reply::Error(error) => bail!("Redis refused {}: {error}", words.join(" ")),
            reply => Ok(reply),
        }
    }

    /// Sends one command.
    pub(super) async fn send(&mut self, words: &[&str]) -> Result<()> {
        encode(&mut self.outgoing, words.iter());
        while !self.outgoing.is_empty() {
            self.stream.writable().await?;
            self.write_some()?;
        }
        Ok(())
    }

    /// The next answer.
    pub(super) async fn next(&mut self) -> Result<Reply> {
        loop {
            if let Some(reply) = self.parse_next()? {
                return Ok(reply);
            }
            self.stream.readable().await?;
            self.read_some()?;
        }
    }

    fn write_some(&mut self) -> Result<()> {
        match self.stream.try_write(&self.outgoing) {
            Ok(written) => drop(self.outgoing.drain(..written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("the connection to the benchmark's Redis broke"),
        }
        Ok(())
    }

    fn read_some(&mut self) -> Result<()> {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        match self.stream.try_read(&mut self.chunk) {
            Ok(0) => bail!("the benchmark's Redis closed the connection"),
            Ok(length) => self.incoming.extend_from_slice(&self.chunk[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("the connection to the benchmark's Redis broke"),
        }
        Ok(())
    }

    fn parse_next(&mut self) -> Result<Option<Reply>> {
        let Some((reply, length)) = parse(&self.incoming[self.taken..])? else { return Ok(None) };
        self.taken += length;
        Ok(Some(reply))
    }
}

/// Commands that go out together, and how many answers they get.
#[derive(Default)]
pub(super) struct Pipeline {
    bytes: Vec<u8>,
    commands: usize,
}

impl Pipeline {
    /// Adds a command.
    pub(super) fn add<W: AsRef<[u8]>>(&mut self, words: impl ExactSizeIterator<Item = W>) {
        encode(&mut self.bytes, words);
        self.commands += 1;
    }

    /// What will be sent, to look at.
    #[cfg(test)]
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

struct Request {
    pipeline: Pipeline,
    answer: oneshot::Sender<Vec<Reply>>,
}

struct Waiting {
    missing: usize,
    replies: Vec<Reply>,
    answer: oneshot::Sender<Vec<Reply>>,
}

/// One connection that many callers share, as the broker's own is shared.
#[derive(Clone)]
pub(super) struct Shared(mpsc::UnboundedSender<Request>);

impl Shared {
    /// Connects to a server on this machine.
    pub(super) async fn connect(port: u16) -> Result<Self> {
        let wire = Wire::connect(port).await?;
        let (sender, receiver) = mpsc::unbounded_channel();
        // What goes wrong there is seen by the callers, whose answers do not come.
        tokio::spawn(drive(wire, receiver));
        Ok(Self(sender))
    }

    /// Sends commands and waits for their answers, none of which may be a refusal.
    pub(super) async fn call(&self, pipeline: Pipeline) -> Result<Vec<Reply>> {
        let (answer, answered) = oneshot::channel();
        let lost = "the connection to the benchmark's Redis broke";
        self.0.send(Request { pipeline, answer }).ok().context(lost)?;
        let replies = answered.await.context(lost)?;
        for reply in &replies {
            ensure!(!matches!(reply, Reply::Error(_)), "Redis refused a bare command: {reply:?}");
        }
        Ok(replies)
    }
}

async fn drive(mut wire: Wire, mut requests: mpsc::UnboundedReceiver<Request>) -> Result<()> {
    let mut waiting = VecDeque::new();
    loop {
        let interest =
            if wire.outgoing.is_empty() { Interest::READABLE } else { Interest::READABLE.add(Interest::WRITABLE) };
        tokio::select! {
            request = requests.recv() => {
                let Some(request) = request else { return Ok(()) };
                accept(request, &mut wire, &mut waiting);
                // Whatever else is there goes out in the same write.
                while let Ok(request) = requests.try_recv() {
                    accept(request, &mut wire, &mut waiting);
                }
                wire.write_some()?;
            }
            ready = wire.stream.ready(interest) => {
                let ready = ready?;
                if ready.is_writable() {
                    wire.write_some()?;
                }
                if ready.is_readable() {
                    wire.read_some()?;
                    deliver(&mut wire, &mut waiting)?;
                }
            }
        }
    }
}

fn accept(request: Request, wire: &mut Wire, waiting: &mut VecDeque<Waiting>) {
    let Request { pipeline, answer } = request;
    wire.outgoing.extend_from_slice(&pipeline.bytes);
    let replies = Vec::with_capacity(pipeline.commands);
    waiting.push_back(Waiting { missing: pipeline.commands, replies, answer });
}

fn deliver(wire: &mut Wire, waiting: &mut VecDeque<Waiting>) -> Result<()> {
    while let Some(reply) = wire.parse_next()? {
        let first = waiting.front_mut().context("Redis sent an answer that nobody waits for")?;
        first.replies.push(reply);
        first.missing -= 1;
        if first.missing == 0
            && let Some(done) = waiting.pop_front()
        {
            // A caller that has gone away is none of our business.
            let _ = done.answer.send(done.replies);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_written_as_the_protocol_wants_it() {
        let mut out = Vec::new();
        encode(&mut out, ["GET", "käse"].iter());
        assert_eq!(out, "*2\r\n$3\r\nGET\r\n$5\r\nkäse\r\n".as_bytes());
    }

    #[test]
    fn every_kind_of_answer_is_read() {
        let text = |word: &str| Reply::Text(word.as_bytes().to_vec());
        let all = b"*6\r\n+OK\r\n$4\r\na\r\nb\r\n:-7\r\n$-1\r\n*-1\r\n*0\r\nrest";
        let (reply, length) = parse(all).expect("valid").expect("complete");
        let expected = vec![text("OK"), text("a\r\nb"), Reply::Number(-7), Reply::Nil, Reply::Nil, Reply::List(vec![])];
        assert_eq!((reply, &all[length..]), (Reply::List(expected), &b"rest"[..]));
        assert_eq!(parse(b"-ERR no\r\n").expect("valid"), Some((Reply::Error("ERR no".to_owned()), 9)));
    }

    #[test]
    fn half_an_answer_is_waited_for() {
        let whole = b"*2\r\n$5\r\nhello\r\n*1\r\n:1\r\n";
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]).expect("no error"), None, "{length}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_sentence() {
        for bad in [&b"?what\r\n"[..], b":x\r\n", b"$-5\r\n", b"\r\n"] {
            assert!(parse(bad).expect_err("refused").to_string().starts_with("Redis sent"), "{bad:?}");
        }
    }
}
