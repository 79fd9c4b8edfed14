//! What a server tells of itself, and what of that puts tasks at risk.

use super::info_field;

/// The oldest server that every script runs on.
const OLDEST: (u32, u32) = (6, 2);

/// What a server tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerReport {
    /// Its version, as it says it. Valkey and others say which Redis they are like.
    pub version: String,
    /// New with each start of the server.
    pub run_id: String,
    /// What it does when memory runs out.
    pub eviction_policy: String,
    /// Whether it writes down every change.
    pub append_only: bool,
}

/// A setting of a server that puts tasks at risk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Danger {
    /// It may delete keys.
    #[error("maxmemory-policy is {0}: Redis may delete tasks when memory runs out; set it to noeviction")]
    Eviction(String),
    /// It forgets.
    #[error("appendonly is off: a crash of Redis loses what came after the last snapshot; set appendonly yes")]
    NotPersistent,
}

impl ServerReport {
    /// Reads the answer to INFO.
    pub(super) fn read(info: &str) -> Self {
        let field = |name| info_field(info, name).unwrap_or_default();
        Self {
            version: field("redis_version").to_owned(),
            run_id: field("run_id").to_owned(),
            eviction_policy: field("maxmemory_policy").to_owned(),
            append_only: field("aof_enabled") != "0",
        }
    }

    /// Whether it has all that the scripts need; a server that hides its version is believed.
    pub fn is_supported(&self) -> bool {
        let mut numbers = self.version.split('.').map(|part| part.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => (major, minor) >= OLDEST,
            _ => true,
        }
    }

    /// What puts tasks at risk, the worst first.
    pub fn dangers(&self) -> Vec<Danger> {
        let eviction = (self.eviction_policy != "noeviction").then(|| Danger::Eviction(self.eviction_policy.clone()));
        let forgets = (!self.append_only).then_some(Danger::NotPersistent);
        eviction.into_iter().chain(forgets).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_judged_by_what_it_tells() {
        let info =
            "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:0\r\n";
        let report = ServerReport::read(info);
        assert!(report.is_supported());
        assert_eq!(report.dangers(), [Danger::Eviction("allkeys-lru".into()), Danger::NotPersistent]);
        let fine = ServerReport { eviction_policy: "noeviction".into(), append_only: true, ..report.clone() };
        assert!(fine.dangers().is_empty());
        for (version, supported) in [("6.0.16", false), ("5.0.3", false), ("6.2.0", true), ("9.1.0", true), ("", true)]
        {
            assert_eq!(
                ServerReport { version: version.into(), ..report.clone() }.is_supported(),
                supported,
                "{version}"
            );
        }
    }
}
