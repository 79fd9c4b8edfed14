//! A queue's beginning and end: who has it, whether it is as it was provisioned, and how it is removed.

use redis::Value;

use super::reply::{Malformed, fields, list, number, parts, text};
use super::script::SCRIPTS;
use super::{Redis, RedisBroker, policy, word_and_rest};
use crate::broker::{BrokerError, Result};
use crate::protocol::keys::{BELL_GROUP, Keys};
use crate::protocol::policy::Policy;

/// How many tasks or lanes one step of a removal takes.
const REMOVAL_STEP: usize = 100;

/// How a queue stands, against how it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Who provisioned it; `None` if nobody did.
    pub owner: Option<String>,
    /// Whether every field of the policy is as it should be.
    pub policy: Intact,
    /// Whether the groups on the task stream are there.
    pub groups: Intact,
    /// Whether somebody has begun to remove it.
    pub removal_begun: bool,
}

/// Whether something is as it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intact {
    /// It is.
    Yes,
    /// It is gone, or somebody changed it.
    No,
}

/// Which queues a removal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// With all that is in it.
    WithTasks,
    /// Only if no task is live, no raw entry waits and no dead letter is undecided.
    IfEmpty,
}

/// What a step of a removal did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removed {
    /// Nothing is left, or nothing was there.
    Done,
    /// Nobody finds the queue any more; more of it is left to remove.
    More,
    /// It belongs to another owner; nothing was changed.
    Owned {
        /// Who has it.
        owner: String,
    },
    /// There is something in it; nothing was changed.
    Busy {
        /// Tasks that are not final.
        live: u64,
        /// Dead letters that nobody has decided on.
        dead_letters: u64,
        /// Raw entries that nobody has read; more than a few are not counted.
        raw_entries: u64,
    },
}

impl Redis {
    /// Whether all these queues have a policy and an owner, in one command; `None` on a Cluster, where each queue has its
    /// own server.
    pub async fn are_there(&self, queues: &[&Keys]) -> Result<Option<bool>> {
        let Some(link) = &self.shared else { return Ok(None) };
        if queues.is_empty() {
            return Ok(Some(true));
        }
        let mut exists = redis::cmd("EXISTS");
        for keys in queues {
            exists.arg(keys.policy()).arg(keys.meta());
        }
        let found = number(link.call(&exists).await?).map_err(|m| m.during("EXISTS"))?;
        Ok(Some(found == 2 * queues.len() as u64))
    }
}

impl RedisBroker {
    /// Whether policy and groups are as provisioning with this policy made them, in two commands: for who looks at many
    /// queues again and again. It does not tell whose the queue is.
    pub async fn is_intact(&self, policy: &Policy) -> Result<Intact> {
        match self.has_policy(policy).await? {
            Intact::Yes => self.has_groups().await,
            Intact::No => Ok(Intact::No),
        }
    }

    async fn has_policy(&self, policy: &Policy) -> Result<Intact> {
        let fields = policy::fields(policy);
        let mut get = redis::cmd("HMGET");
        get.arg(self.keys.policy());
        for (name, _) in &fields {
            get.arg(*name);
        }
        let found = list(self.command(&get).await?).map_err(|m| m.during("HMGET"))?;
        let right = fields.into_iter().map(|(_, value)| Value::BulkString(value)).eq(found);
        Ok(if right { Intact::Yes } else { Intact::No })
    }

    async fn has_groups(&self) -> Result<Intact> {
        let mut groups = redis::cmd("XINFO");
        groups.arg("GROUPS").arg(&self.keys.task);
        let answer = match self.command(&groups).await {
            Err(BrokerError::Unexpected { detail, .. }) if detail.contains("no such key") => return Ok(Intact::No),
            answer => answer?,
        };
        let read = |answer| -> std::result::Result<Intact, Malformed> {
            let mut found = 0;
            for group in list(answer)? {
                let name = fields(group)?.remove("name").unwrap_or_default();
                found += usize::from(name == self.keys.group.as_bytes() || name == BELL_GROUP.as_bytes());
            }
            Ok(if found == 2 { Intact::Yes } else { Intact::No })
        };
        read(answer).map_err(|m| m.during("XINFO"))
    }

    /// Whether the queue is as provisioning it with this policy made it.
    pub async fn inspect(&self, policy: &Policy) -> Result<Inspection> {
        let fields = policy::fields(policy);
        let mut call = self.call(&SCRIPTS.inspect);
        let mut digest = sha1_smol::Sha1::new();
        for (name, value) in &fields {
            call.push(*name);
            digest.update(format!("{}:", value.len()).as_bytes());
            digest.update(value);
        }
        let expected = digest.digest().to_string();
        let read = |value| -> std::result::Result<Inspection, Malformed> {
            let [owner, digest, groups, removal]: [Value; 4] = parts(value)?;
            let intact = |yes| if yes { Intact::Yes } else { Intact::No };
            Ok(Inspection {
                owner: Some(text(owner)?).filter(|owner| !owner.is_empty()),
                policy: intact(text(digest)? == expected),
                groups: intact(number(groups)? == 1),
                removal_begun: number(removal)? == 1,
            })
        };
        read(self.run(call).await?).map_err(|m| m.during("inspect"))
    }

    /// Takes one bounded step of removing the queue and all that it keeps. After
    /// the first one no client finds it; call again until it is done.
    pub async fn remove(&self, owner: &str, removal: Removal) -> Result<Removed> {
        let condition = match removal {
            Removal::WithTasks => "",
            Removal::IfEmpty => "empty",
        };
        let call = self.call(&SCRIPTS.destroy).arg(owner).arg(condition).arg(REMOVAL_STEP);
        let read = |value| -> std::result::Result<Removed, Malformed> {
            let (word, mut rest) = word_and_rest(value)?;
            let mut next = || rest.next().unwrap_or(Value::Nil);
            Ok(match word.as_str() {
                "done" => Removed::Done,
                "more" => Removed::More,
                "owned" => Removed::Owned { owner: text(next())? },
                "busy" => {
                    Removed::Busy { live: number(next())?, dead_letters: number(next())?, raw_entries: number(next())? }
                }
                other => return Err(Malformed(format!("answer {other:?}"))),
            })
        };
        read(self.run(call).await?).map_err(|m| m.during("remove"))
    }
}
