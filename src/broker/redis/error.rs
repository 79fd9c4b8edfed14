//! What an error of the server or the connection means to a caller.

use redis::{ErrorKind, RedisError};

use crate::broker::BrokerError;
use crate::protocol::DATA_MODEL_VERSION;

/// An error, and what it says about the connection that it came over.
pub(super) struct Fault {
    /// What the caller is told.
    pub(super) error: BrokerError,
    /// Whether the next call needs another connection, perhaps to another server.
    pub(super) connection_is_useless: bool,
    /// Whether the server only lacks the script.
    pub(super) no_script: bool,
}

impl From<Fault> for BrokerError {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

/// Words by which servers say that they cannot serve right now.
const BUSY: [&str; 11] = [
    "LOADING",
    "READONLY",
    "TRYAGAIN",
    "ASK",
    "MOVED",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "BUSY",
    "NOREPLICAS",
    "MISCONF",
    "UNBLOCKED",
];

/// What a script says to a worker that gets no more tasks.
pub(super) const FENCED: &str = "FENCED";

/// What the guard at the head of every script meets while its slot moves.
const SLOT_ON_THE_MOVE: &str = "non local key";

/// Words after which the server at the other end is not the right one any more.
const ELSEWHERE: [&str; 5] = ["READONLY", "MOVED", "MASTERDOWN", "NOAUTH", "UNBLOCKED"];

/// Judges an error by what is in it: Redis 6.2 wraps the code of an error
/// inside a script in a longer message.
pub(super) fn classify(error: &RedisError, address: &str) -> Fault {
    let text = match (error.code(), error.detail()) {
        (Some(code), detail) => format!("{code} {}", detail.unwrap_or_default()),
        (None, _) => error.to_string(),
    };
    let says = |word: &&str| text.split(|c: char| !c.is_ascii_uppercase()).any(|part| part == *word);
    let no_script = says(&"NOSCRIPT");
    // A server that dies in the middle of a long answer leaves half of it, which does not parse.
    let is_io = error.is_io_error()
        || error.is_connection_dropped()
        || matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse);
    let elsewhere = ELSEWHERE.iter().any(says);
    // Before a password is given, long commands are refused with this word alone;
    // inside a script a missing right has a sentence and no code.
    let unauthenticated = text.contains("unauthenticated");
    let denied = ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(says)
        || unauthenticated
        || text.contains("The user executing the script can't")
        || text.contains("ACL failure in script")
        || error.kind() == ErrorKind::AuthenticationFailed;
    let error = if denied {
        BrokerError::Denied(text)
    } else if says(&"NOQUEUE") {
        BrokerError::NoQueue(String::new())
    } else if let Some(found) = text.split_once("WVERSION ").map(|(_, rest)| rest) {
        let found = found.split_whitespace().next().unwrap_or_default().to_owned();
        BrokerError::Version { found, known: DATA_MODEL_VERSION }
    } else if says(&FENCED) {
        BrokerError::Fenced
    } else if says(&"OOM") {
        BrokerError::OutOfMemory(text)
    } else if BUSY.iter().any(says)
        || text.contains(SLOT_ON_THE_MOVE)
        || error.kind() == ErrorKind::MasterNameNotFoundBySentinel
    {
        BrokerError::Busy(text)
    } else if is_io {
        BrokerError::Unreachable { address: address.to_owned(), reason: text }
    } else {
        BrokerError::Unexpected { operation: "a Redis command", detail: text }
    };
    Fault { error, connection_is_useless: is_io || elsewhere || unauthenticated, no_script }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::ErrorClass;

    /// Half of an answer says nothing about the queue, only that the connection is over.
    #[test]
    fn an_answer_that_breaks_off_is_a_lost_connection() {
        let whole = b"*2\r\n$3\r\none\r\n:2\r\n";
        assert!(redis::parse_redis_value(whole).is_ok());
        for length in 0..whole.len() {
            let error = redis::parse_redis_value(&whole[..length]).expect_err("it is not whole");
            let fault = classify(&error, "127.0.0.1:6379");
            assert_eq!(fault.error.class(), ErrorClass::Transient, "{length} bytes: {}", fault.error);
            assert!(fault.connection_is_useless, "{length} bytes");
        }
    }
}
