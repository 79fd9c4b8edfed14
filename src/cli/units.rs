//! What people write for times, rates and labels.

use std::num::NonZeroU32;
use std::time::Duration;

use jiff::Timestamp;

/// Reads `500ms`, `5s`, `2m`, `1h30m`, `7d`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let advice = || format!("{text:?} is no duration: write a number and its unit, like 500ms, 30s, 5m, 1h30m or 7d");
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(advice());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let letters = rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        let number: f64 = rest[..digits].parse().map_err(|_| advice())?;
        let seconds = match &rest[digits..digits + letters] {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(advice()),
        };
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| advice())?;
        total = total.checked_add(part).ok_or_else(advice)?;
        rest = &rest[digits + letters..];
    }
    // Nothing here is finer, and 0.1 + 0.2 should not show.
    Ok(Duration::from_millis((total.as_secs_f64() * 1000.0).round() as u64))
}

/// Reads an RFC 3339 time.
pub(super) fn parse_time(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| format!("{text:?} is no time: write it as RFC 3339, like 2026-02-21T09:30:00Z"))
}

/// A time, or how long ago it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    At(Timestamp),
    Ago(Duration),
}

impl Moment {
    /// Which time that is now.
    pub(super) fn timestamp(self) -> Timestamp {
        match self {
            Moment::At(time) => time,
            Moment::Ago(ago) => Timestamp::now().saturating_sub(ago).unwrap_or(Timestamp::UNIX_EPOCH),
        }
    }
}

/// Reads an RFC 3339 time, or a duration as how long ago.
pub(super) fn parse_moment(text: &str) -> Result<Moment, String> {
    let both = format!(
        "{text:?} is neither a time nor how long ago: write it as RFC 3339 (2026-02-21T09:30:00Z) or like 30m, 2h or 7d"
    );
    parse_time(text).map(Moment::At).or_else(|_| parse_duration(text).map(Moment::Ago)).map_err(|_| both)
}

/// Reads `KEY=VALUE`.
pub(super) fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no label: write KEY=VALUE")),
    }
}

/// Reads `10/s`, or the number alone.
pub(super) fn parse_rate(text: &str) -> Result<NonZeroU32, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).trim();
    number.parse().map_err(|_| format!("{text:?} is no rate: write how many a second at most, like 10/s"))
}

/// A duration as people say it, in its two largest units.
pub(super) fn spoken(duration: Duration) -> String {
    let (millis, seconds) = (duration.as_millis(), duration.as_secs());
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let parts = [(seconds / 86400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let first = parts.iter().position(|(number, _)| *number > 0).unwrap_or(3);
    let shown = parts.iter().skip(first).take(2).filter(|(number, _)| *number > 0);
    shown.map(|(number, unit)| format!("{number}{unit}")).collect()
}

/// How long before `now` a time was, or nothing if it is later.
pub(super) fn since(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_the_units_that_people_use() {
        let read = |text: &str| parse_duration(text).expect(text).as_millis();
        assert_eq!(
            [read("500ms"), read("5s"), read("1h30m"), read("7d"), read("0.5s")],
            [500, 5000, 5_400_000, 604_800_000, 500]
        );
        for bad in ["", "5", "s", "5 parsecs", "-5s", "1e999s", "99999999999999999999d", "1.2.3s"] {
            assert!(parse_duration(bad).expect_err(bad).contains("like 500ms"), "{bad}");
        }
    }

    #[test]
    fn durations_are_spoken_in_two_units() {
        let spoken = |ms| spoken(Duration::from_millis(ms));
        assert_eq!(
            [spoken(12), spoken(40_000), spoken(90_000), spoken(3_600_000), spoken(90_061_000)],
            ["12ms", "40s", "1m30s", "1h", "1d1h"]
        );
    }

    #[test]
    fn moments_are_times_or_ages() {
        assert!(matches!(parse_moment("2026-02-21T09:30:00Z"), Ok(Moment::At(_))));
        assert_eq!(parse_moment("2h"), Ok(Moment::Ago(Duration::from_secs(7200))));
        assert!(parse_moment("yesterday").expect_err("a word").contains("RFC 3339"));
    }

    #[test]
    fn rates_and_labels_are_checked() {
        assert_eq!(parse_rate("10/s").map(NonZeroU32::get), Ok(10));
        assert_eq!(parse_rate("2").map(NonZeroU32::get), Ok(2));
        for bad in ["0", "0/s", "-1/s", "x/s", "1/y", "0.5/s"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(parse_label("=x").is_err() && parse_label("x").is_err());
    }
}
