//! What a server tells of itself in INFO.

/// A line's value.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// A line's value as a number; 0 where there is none.
pub(super) fn number(info: &str, name: &str) -> f64 {
    field(info, name).and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

/// How often any command was called, those inside scripts included.
pub(super) fn calls(info: &str) -> f64 {
    let calls = |line: &str| {
        let (_, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        numbers.split(',').next()?.parse::<f64>().ok()
    };
    info.lines().filter_map(calls).sum()
}

/// The server's name and version.
pub(super) fn version(info: &str) -> String {
    match (field(info, "valkey_version"), field(info, "redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "a server that does not tell its version".to_owned(),
    }
}

/// Where the server's counters stand.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Usage {
    /// Processor time of the whole process, in seconds.
    pub(super) cpu: f64,
    /// Calls of commands, those inside scripts included.
    pub(super) calls: f64,
    /// The same as the server itself sums it up.
    pub(super) processed: f64,
    /// Bytes that the allocator has handed out.
    pub(super) memory: f64,
}

impl Usage {
    /// From INFO with all its sections.
    pub(super) fn read(info: &str) -> Self {
        Self {
            cpu: number(info, "used_cpu_user") + number(info, "used_cpu_sys"),
            calls: calls(info),
            processed: number(info, "total_commands_processed"),
            memory: number(info, "used_memory"),
        }
    }

    /// What was added since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            calls: self.calls - before.calls,
            processed: self.processed - before.processed,
            memory: self.memory - before.memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\n# Memory\r\nused_memory:1048576\r\nused_memory_human:1M\r\n\
        # Stats\r\ntotal_commands_processed:14\r\n# CPU\r\nused_cpu_sys:1.250000\r\nused_cpu_user:2.500000\r\nused_cpu_sys_children:9.0\r\n\
        # Commandstats\r\ncmdstat_evalsha:calls=10,usec=5,usec_per_call=0.5\r\n\
        cmdstat_config|set:calls=2,usec=9\r\ncmdstat_odd\r\n";

    #[test]
    fn usage_is_read_from_info() {
        assert_eq!(Usage::read(INFO), Usage { cpu: 3.75, calls: 12.0, processed: 14.0, memory: 1_048_576.0 });
        assert_eq!(Usage::read("nothing of the kind"), Usage::default());
    }

    #[test]
    fn usage_is_compared_with_what_was_before() {
        let before = Usage { cpu: 3.5, calls: 2.0, processed: 3.0, memory: 1_048_500.0 };
        let since = Usage { cpu: 0.25, calls: 10.0, processed: 11.0, memory: 76.0 };
        assert_eq!(Usage::read(INFO).since(before), since);
    }

    #[test]
    fn both_kinds_of_server_say_their_version() {
        assert_eq!(version(INFO), "Redis 7.0.15");
        assert_eq!(version("redis_version:7.2.4\nvalkey_version:9.1.2\n"), "Valkey 9.1.2");
        assert!(version("").contains("does not tell"));
    }
}
