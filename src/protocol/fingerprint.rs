//! What a failure is called, so that thousands of dead letters read as a few causes.
//!
//! A fingerprint is a digest of type, error code and error text, the text
//! stripped of what changes from one failure to the next: numbers, ids,
//! addresses, times, quoted values. What tells causes apart stays: words,
//! identifiers that a word like `column` announces, numbers that a word like
//! `status` announces.
//!
//! Fingerprints are stored, so the rules are frozen: a change of them would
//! split every known cause in two. They look at ASCII alone, because Unicode's
//! tables change.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::names::TaskType;

/// Names a cause: sixteen hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(String);

impl Fingerprint {
    const DIGITS: usize = 16;

    /// The fingerprint as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text that is no fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is 16 hexadecimal digits as `dlq list` prints them, not {0:?}")]
pub struct InvalidFingerprint(pub String);

impl FromStr for Fingerprint {
    type Err = InvalidFingerprint;
    fn from_str(value: &str) -> Result<Self, InvalidFingerprint> {
        if value.len() == Self::DIGITS && value.bytes().all(|b| b.is_ascii_hexdigit()) {
            Ok(Self(value.to_ascii_lowercase()))
        } else {
            Err(InvalidFingerprint(value.chars().take(80).collect()))
        }
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = InvalidFingerprint;
    fn try_from(value: String) -> Result<Self, InvalidFingerprint> {
        value.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> String {
        fingerprint.0
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names the cause of a failure.
pub fn fingerprint(task_type: &TaskType, error_code: &str, error: &str) -> Fingerprint {
    let cause = format!("{task_type}\n{error_code}\n{}", essence(error));
    Fingerprint(sha1_smol::Sha1::from(cause).digest().to_string()[..Fingerprint::DIGITS].to_owned())
}

/// How much of an error's essence counts. Errors are cut to a length when they are
/// stored; what is near the cut depends on the length of ids before it.
const LONGEST: usize = 1000;

/// What stands in for what changes.
const VALUE: &str = "<>";

/// Words that announce an identifier, not a value: the quoted name after them tells causes apart.
const NAMING: &str = "attribute column constraint field file function index key keyerror keyword label member method \
                      module name named operator option parameter property reading relation table type variable";

/// Words that announce a code, not a count: the number after them tells causes apart.
const CODING: &str = "code errno error exit exitcode http signal sqlstate state status statuscode";

/// The longest number that can be a code.
const LONGEST_CODE: usize = 5;

/// Units that follow a number without a space.
const UNITS: &str = "ns us ms s sec secs m min h d b kb mb gb tb kib mib gib x z th";

fn is_among(words: &str, word: &str) -> bool {
    words.split(' ').any(|one| one == word)
}

/// An error's text without what changes from one failure to the next.
fn essence(error: &str) -> String {
    let mut essence = Scan::through(&error.to_ascii_lowercase());
    essence.truncate(essence.floor_char_boundary(LONGEST));
    essence.trim_end().to_owned()
}

/// A walk through a text.
struct Scan<'a> {
    rest: &'a str,
    out: String,
    /// The last word before the place, which may announce what follows.
    word: String,
}

impl<'a> Scan<'a> {
    fn through(text: &'a str) -> String {
        let mut scan = Self { rest: text, out: String::new(), word: String::new() };
        while !scan.rest.is_empty() && scan.out.len() < LONGEST {
            scan.step();
        }
        scan.out
    }

    fn step(&mut self) {
        let first = self.rest.chars().next().expect("invariant: the caller saw that there is more");
        if is_space(first) {
            self.take(first.len_utf8());
            self.push_space();
        } else if matches!(first, '"' | '\'' | '`') && self.is_between_words() {
            self.quoted(first);
        } else if is_word(first) {
            self.run();
        } else if let Some(length) = bracketed_ipv6(self.rest) {
            self.take(length);
            self.push_value();
        } else {
            self.take(first.len_utf8());
            self.out.push(first);
        }
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    fn push_space(&mut self) {
        if !self.out.is_empty() && !self.out.ends_with(' ') {
            self.out.push(' ');
        }
    }

    /// A list of values is one value, however long it is.
    fn push_value(&mut self) {
        let before = self.out.trim_end_matches([' ', ',', ';', ':', '/', '-', '.', '|']);
        if before.ends_with(VALUE) {
            self.out.truncate(before.len());
        } else {
            self.out.push_str(VALUE);
        }
    }

    fn is_between_words(&self) -> bool {
        !self.out.ends_with(is_word)
    }

    /// A quoted text: a name if the word before says so, else a value. An
    /// apostrophe without a partner on its line is only that.
    fn quoted(&mut self, quote: char) {
        self.take(quote.len_utf8());
        let line = &self.rest[..self.rest.find('\n').unwrap_or(self.rest.len())];
        let Some(end) = line.find(quote) else {
            self.out.push(quote);
            return;
        };
        let inside = self.take(end);
        self.take(quote.len_utf8());
        let is_name = inside.chars().all(|c| is_word(c) || "_.-/".contains(c));
        if is_name && is_among(NAMING, &self.word) {
            self.out.push_str(&Scan::through(inside));
        } else {
            self.push_value();
        }
    }

    /// What begins with a letter or a digit: an address, an id, a number, or a word.
    fn run(&mut self) {
        let chunk = &self.rest[..self.rest.find(ends_chunk).unwrap_or(self.rest.len())];
        if let Some(length) = mail(chunk).or_else(|| uuid(chunk)).or_else(|| ipv6(chunk)) {
            self.take(length);
            self.push_value();
        } else if chunk.as_bytes()[0].is_ascii_digit() && !is_id(first_word(chunk)) {
            self.number(chunk);
        } else {
            self.word(chunk);
        }
    }

    fn number(&mut self, chunk: &str) {
        let length = number_length(chunk);
        let number = self.take(length);
        let is_code = number.len() <= LONGEST_CODE && number.bytes().all(|b| b.is_ascii_digit());
        if is_code && is_among(CODING, &self.word) {
            self.out.push_str(number);
        } else {
            self.push_value();
        }
    }

    fn word(&mut self, chunk: &str) {
        let word = self.take(first_word(chunk).len());
        if is_id(word) {
            self.push_value();
            return;
        }
        // `worker7` and `worker12` are the same word with different numbers.
        let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
        self.out.push_str(letters);
        self.word = letters.to_owned();
        if letters.len() < word.len() {
            self.out.push_str(VALUE);
        } else if self.rest.starts_with("://") {
            self.url();
        }
    }

    /// After a URL's scheme: what is behind the `?` is values.
    fn url(&mut self) {
        let end = self.rest.find(|c: char| is_space(c) || "\"'`<>)]}".contains(c)).unwrap_or(self.rest.len());
        let url = self.take(end);
        let (address, query) = url.split_once('?').map_or((url, None), |(address, query)| (address, Some(query)));
        self.out.push_str(&Scan::through(address));
        if query.is_some() {
            self.push_value();
        }
    }
}

/// Other letters stand for themselves: Chinese has no spaces around the numbers in it.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

fn is_space(c: char) -> bool {
    c.is_ascii_whitespace() || c.is_ascii_control() || matches!(c, '\u{a0}' | '\u{3000}')
}

fn ends_chunk(c: char) -> bool {
    is_space(c) || "\"'`()[]{}<>,;=|".contains(c)
}

fn first_word(chunk: &str) -> &str {
    &chunk[..chunk.find(|c| !is_word(c)).unwrap_or(chunk.len())]
}

/// The length of a mail address at the beginning.
fn mail(chunk: &str) -> Option<usize> {
    let (local, domain) = chunk.split_once('@')?;
    let is_local = local.chars().all(|c| is_word(c) || "._%+-".contains(c));
    let length = domain.find(|c: char| !(is_word(c) || ".-".contains(c))).unwrap_or(domain.len());
    let domain = domain[..length].trim_end_matches(['.', '-']);
    // `com.shop.Order@1a2b` is an object, not an address.
    let (_, top) = domain.rsplit_once('.')?;
    let is_top = top.len() > 1 && top.bytes().all(|b| b.is_ascii_alphabetic());
    (is_local && is_top).then_some(local.len() + 1 + domain.len())
}

/// The length of a UUID at the beginning.
fn uuid(chunk: &str) -> Option<usize> {
    const LENGTH: usize = 36;
    let text = chunk.as_bytes().get(..LENGTH)?;
    let fits = text.iter().enumerate().all(|(i, b)| match i {
        8 | 13 | 18 | 23 => *b == b'-',
        _ => b.is_ascii_hexdigit(),
    });
    let goes_on = chunk.get(LENGTH..).is_some_and(|rest| rest.starts_with(is_word));
    (fits && !goes_on).then_some(LENGTH)
}

/// The length of an IPv6 address at the beginning.
fn ipv6(chunk: &str) -> Option<usize> {
    let length = chunk.find(|c: char| !(c.is_ascii_hexdigit() || c == ':')).unwrap_or(chunk.len());
    let text = chunk[..length].trim_end_matches(':');
    let goes_on = chunk[text.len()..].starts_with(is_word);
    (text.matches(':').count() >= 2 && text.contains(|c: char| c.is_ascii_digit()) && !goes_on).then_some(text.len())
}

/// The length of an IPv6 address in brackets, as it stands before a port, at the beginning.
fn bracketed_ipv6(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('[')?;
    let length = ipv6(inside)?;
    inside[length..].starts_with(']').then_some(length + 2)
}

/// Whether a word is made by a machine: letters and digits in turn, or a long mixture of them.
fn is_id(word: &str) -> bool {
    const LONG: usize = 8;
    let is_digit: Vec<bool> = word.chars().map(|c| c.is_ascii_digit()).collect();
    let turns = is_digit.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let letters_then_digits = turns == 1 && !is_digit[0];
    let is_hex = word.bytes().all(|b| b.is_ascii_hexdigit());
    if word.starts_with("0x") && word.len() > 2 {
        return true;
    }
    // `30s` and `12kb` are numbers, and so is `1m30s`.
    if is_digit.first() == Some(&true) && has_unit(word) {
        return false;
    }
    turns >= 2 || (turns == 1 && word.len() >= LONG && (is_hex || !letters_then_digits))
}

/// Whether a word is a number with a unit, perhaps several of them in a row.
fn has_unit(word: &str) -> bool {
    let mut rest = word;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, after) = rest.split_at(unit_at);
        let (unit, next) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        if digits.is_empty() || !(unit.is_empty() || is_among(UNITS, unit)) {
            return false;
        }
        rest = next;
    }
    true
}

/// The length of a number at the beginning, with all that belongs to it: fractions,
/// dates, times, ports, units.
fn number_length(chunk: &str) -> usize {
    let bytes = chunk.as_bytes();
    let is_digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let mut end = 0;
    loop {
        while is_digit(end) {
            end += 1;
        }
        if chunk[end..].starts_with("µs") {
            end += "µs".len();
        }
        let word = first_word(&chunk[end..]);
        let unit = word.trim_end_matches(|c: char| c.is_ascii_digit());
        if !unit.is_empty() && is_among(UNITS, unit) {
            end += unit.len();
        } else if unit == "t" && is_digit(end + 1) {
            // Between a date and a time.
            end += 1;
        }
        if is_digit(end) {
            continue;
        }
        let joins = bytes.get(end).is_some_and(|b| b".:-/_+".contains(b)) && is_digit(end + 1);
        if !joins {
            return end;
        }
        end += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(error: &str) -> Fingerprint {
        fingerprint(&TaskType::default(), "failed", error)
    }

    /// Groups of messages: one cause each, and each another one.
    const CAUSES: [&[&str]; 39] = [
        &[
            "connect to 10.0.3.17:5432 timed out after 3000ms",
            "connect to 10.0.12.4:5433 timed out after 3.2s",
            "connect to 10.0.12.4:5433 timed out after 1m30.5s",
            "Connect to  10.1.1.1:5432 timed out\nafter 30s",
        ],
        &[
            "connect to 10.0.3.17:5432 was refused",
            "connect to [fe80::1]:5432 was refused",
            "connect to [::1]:6379 was refused",
        ],
        &[
            "duplicate key value violates unique constraint \"orders_pkey\"\nDETAIL: Key (id)=(48213) already exists.",
            "duplicate key value violates unique constraint \"orders_pkey\"\nDETAIL: Key (id)=(7) already exists.",
        ],
        &["duplicate key value violates unique constraint \"users_email_key\""],
        &["column \"email\" does not exist"],
        &["column \"phone\" does not exist"],
        &["KeyError: 'customer_id'"],
        &["KeyError: 'total'"],
        &["user 'alice' was not found", "user 'bob the builder' was not found", "user '' was not found"],
        &[
            "task 0192f3a4-7c1e-7b2a-9c3d-1f2e3d4c5b6a is gone",
            "task 550e8400-e29b-41d4-a716-446655440000 is gone",
            "task deadbeef-dead-beef-dead-beefdeadbeef is gone",
        ],
        &["HTTP 503 from upstream after 12 tries", "HTTP 503 from upstream after 3 tries"],
        &["HTTP 404 from upstream after 3 tries"],
        &["exit code 137"],
        &["exit code 1"],
        &[
            "GET https://api.example.com/v1/users/8231?token=abc&x=1 failed: status 500",
            "GET https://api.example.com/v1/users/17 failed: status 500",
            "GET https://api.example.com/v1/users/9f8e7d6c5b4a?q=%20 failed: status 500",
        ],
        &["GET https://api.example.com/v1/orders/8231 failed: status 500"],
        &[
            "mail to bob@example.com bounced at 2024-03-01T12:30:45.123Z",
            "mail to alice.smith+x@mail.example.co.uk bounced at 2025-11-30 01:02:03",
        ],
        &[
            "panicked at src/main.rs:10:5:\nindex out of bounds: the len is 3 but the index is 7",
            "panicked at src/main.rs:10:5:\nindex out of bounds: the len is 0 but the index is 12",
        ],
        &["panicked at src/other.rs:10:5:\nindex out of bounds: the len is 3 but the index is 7"],
        &[
            "NullPointerException\n\tat com.shop.Order.total(Order.java:42)\n\tat com.shop.Cart@1a2b3c.sum(Cart.java:7)",
            "NullPointerException\n\tat com.shop.Order.total(Order.java:43)\n\tat com.shop.Cart@7f8e9d0.sum(Cart.java:9)",
        ],
        &["expected value at line 1 column 2", "expected value at line 31 column 18"],
        &["missing field `email` at line 1 column 20", "missing field `email` at line 3 column 4"],
        &["missing field `total` at line 1 column 20"],
        &["segfault at 0x7ffee4b2 ip 0x0", "segfault at 0xdeadbeef ip 0x55d1c"],
        &["ids [1, 2, 3] are locked", "ids [77] are locked", "ids [12,13] are locked"],
        &["worker-7d9f8b6c5-x2k4q was lost", "worker-5c6d7f8b9-k4x2z was lost"],
        &["shard12 is full", "shard3 is full"],
        &["can't open the file; don't ask", "Can't open the file;   don't ask"],
        &["order ord_8f3kQz2LmN9 was refused", "order ord_1aB2cD3eF4g was refused"],
        &[
            "Traceback (most recent call last):\n  File \"/app/worker.py\", line 42, in run\nValueError: no int: 'abc'",
            "Traceback (most recent call last):\n  File \"/app/worker.py\", line 57, in run\nValueError: no int: ''",
        ],
        &["Traceback (most recent call last):\n  File \"/app/mailer.py\", line 42, in run\nValueError: no int: 'abc'"],
        &["[Errno 111] Connection refused"],
        &["[Errno 104] Connection reset by peer"],
        &[
            "ENOENT: no such file or directory, open '/data/2024/in-77.csv'",
            "ENOENT: no such file or directory, open '/data/x.csv'",
        ],
        &["dial tcp 10.2.3.4:6379: i/o timeout", "dial tcp 10.2.3.40:6380: i/o timeout"],
        &["用户12不存在", "用户345不存在"],
        &["订单12不存在"],
        &["Größe überschritten: 12µs", "Größe überschritten: 3.5ms"],
        &[""],
    ];

    #[test]
    fn one_cause_has_one_fingerprint_and_another_cause_has_another() {
        for (i, messages) in CAUSES.iter().enumerate() {
            for message in *messages {
                assert_eq!(of(message), of(messages[0]), "{:?} / {:?}", essence(message), essence(messages[0]));
            }
            for other in &CAUSES[..i] {
                assert_ne!(of(messages[0]), of(other[0]), "{:?}", essence(messages[0]));
            }
        }
    }

    #[test]
    fn type_and_code_are_part_of_the_cause() {
        let kind = TaskType::new("send").expect("valid");
        assert_ne!(of("x"), fingerprint(&kind, "failed", "x"));
        assert_ne!(of("x"), fingerprint(&TaskType::default(), "timeout", "x"));
    }

    /// Fingerprints are stored. If this fails, the rules have changed, and every cause that
    /// is known to a running system would appear a second time.
    #[test]
    fn fingerprints_are_the_same_in_every_version() {
        for (error, expected) in [
            ("", "b81a9ec28ab30cb4"),
            ("connect to 10.0.3.17:5432 timed out after 3000ms", "72629c8344862eca"),
            ("duplicate key value violates unique constraint \"orders_pkey\"", "110e46bd9604ed85"),
            ("HTTP 503 from https://api.example.com/v1/users/8231?x=1", "f294a0d884fc3e3a"),
            ("mail to bob@example.com bounced at 2024-03-01T12:30:45.123Z", "9af3a25b93b974a6"),
            ("task 0192f3a4-7c1e-7b2a-9c3d-1f2e3d4c5b6a of 'alice' is gone", "8ff2ebaf97196370"),
            ("NullPointerException\n\tat com.shop.Cart@1a2b3c.sum(Cart.java:7)", "d692a054a5e48bb7"),
            ("segfault at 0x7ffee4b2; Größe ÄNDERT sich nicht: 12 µs", "bccd4eaf8989d17e"),
        ] {
            assert_eq!(of(error).as_str(), expected, "{error}");
        }
    }

    #[test]
    fn what_is_near_the_cut_of_a_long_error_does_not_count() {
        let long = |id: u32| format!("id {id} {}", "again and ".repeat(400));
        let cut = |id| long(id)[..2000].to_owned();
        assert_eq!(of(&cut(1)), of(&cut(123_456_789)));
    }

    #[test]
    fn any_text_has_a_fingerprint() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let alphabet: Vec<char> = "a0'\"`:/.-@?=xtz \n\u{0}µß界<>,[]()".chars().collect();
            let text: String = (0..random.usize(..30)).map(|_| alphabet[random.usize(..alphabet.len())]).collect();
            assert_eq!(of(&text), of(&text).to_string().parse().expect("round trip"));
        }
    }

    #[test]
    fn what_is_no_fingerprint_is_refused_with_a_sentence() {
        for bad in ["", "abc", "0123456789abcdeg", "0123456789abcdef0"] {
            let error = bad.parse::<Fingerprint>().expect_err(bad);
            assert!(error.to_string().contains("16 hexadecimal digits"), "{error}");
        }
    }
}
