//! A cluster of masters.

use std::time::Duration;

use redis::{RedisResult, Value};

use super::server::info_fields;
use super::{Flavor, Server, ServerBuilder, Wait};

/// How many slots the keys of a cluster are spread over.
pub const SLOTS: u16 = 16_384;

/// A cluster of masters without replicas, over which all slots are spread evenly and in order.
///
/// Slots that nobody serves do not stop the others (`cluster-require-full-coverage no`), so that a
/// test can kill one node and see what the rest still does.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    /// The name of each node in the cluster, in the order of `nodes`; it survives a restart.
    ids: Vec<String>,
}

impl Cluster {
    /// Starts `masters` servers, joins them, and returns once all of them agree on who serves what.
    ///
    /// # Panics
    ///
    /// If a server does not start or the cluster does not form.
    pub async fn start(flavor: Flavor, masters: usize) -> Self {
        Self::start_with(flavor, masters, |builder| builder).await
    }

    /// As [`Cluster::start`], with each node configured by `configure`. Not for TLS.
    ///
    /// # Panics
    ///
    /// If a server does not start or the cluster does not form.
    pub async fn start_with(
        flavor: Flavor,
        masters: usize,
        configure: impl Fn(ServerBuilder) -> ServerBuilder,
    ) -> Self {
        let mut nodes = Vec::new();
        let mut ids = Vec::new();
        for _ in 0..masters {
            let builder = Server::builder(flavor)
                .config("cluster-enabled", "yes")
                .config("cluster-announce-ip", "127.0.0.1")
                .config("cluster-require-full-coverage", "no")
                // Short enough to see a dead node within a test, long enough for a busy machine.
                .config("cluster-node-timeout", "5000");
            let node = configure(builder).start().await;
            ids.push(node.query(&["CLUSTER", "MYID"]).await);
            nodes.push(node);
        }

        for (index, node) in nodes.iter().enumerate() {
            // One by one, because ADDSLOTSRANGE is only there since Redis 7.0.
            let slots = slots_of(index, masters).map(|slot| slot.to_string());
            let slots: Vec<String> = slots.collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            node.command(&command).await;
            // Each its own, which the nodes would otherwise have to settle first.
            let epoch = (index + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
        }
        // Each with each: to leave two nodes to hear of each other by gossip takes seconds longer.
        for (index, node) in nodes.iter().enumerate() {
            for other in &nodes[index + 1..] {
                let port = other.port().to_string();
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port]).await;
            }
        }

        let cluster = Self { nodes, ids };
        cluster.wait_until_ok().await;
        cluster
    }

    /// Returns once every node says that the cluster is well and knows all nodes and the owner of
    /// every slot; also for use after a node was restarted.
    ///
    /// # Panics
    ///
    /// If that does not come to pass.
    pub async fn wait_until_ok(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            let mut wait = Wait::new(format!("cluster node {index} to see the cluster well"));
            loop {
                match self.sees_all_well(node).await {
                    Ok(None) => break,
                    Ok(Some(seen)) => wait.again(seen).await,
                    Err(error) => wait.again(error).await,
                }
            }
        }
    }

    /// Nothing if `node` sees all nodes and slots well, else what it sees.
    async fn sees_all_well(&self, node: &Server) -> RedisResult<Option<String>> {
        let info = info_fields(&node.try_query::<String>(&["CLUSTER", "INFO"]).await?);
        let expected = [
            ("cluster_state", "ok".to_owned()),
            ("cluster_slots_ok", SLOTS.to_string()),
            ("cluster_known_nodes", self.nodes.len().to_string()),
        ];
        let table = table(node).await?;
        let well = expected.iter().all(|(field, value)| info.get(*field) == Some(value))
            && table.iter().all(|entry| entry.connected);
        Ok((!well).then(|| format!("{info:?}, {table:?}")))
    }

    /// The nodes, in the order in which the slots were first spread over them.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The urls of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// Which node serves `slot`: its index in [`Cluster::nodes`], as the cluster itself says.
    ///
    /// # Panics
    ///
    /// If the nodes that run do not come to agree that it is one of them.
    pub async fn node_of(&self, slot: u16) -> usize {
        let mut wait = Wait::new(format!("all nodes to agree on the owner of slot {slot}"));
        loop {
            let mut owners = Vec::new();
            for node in self.nodes.iter().filter(|node| node.is_running()) {
                owners.push(self.owner_seen_by(node, slot).await);
            }
            match owners.first() {
                Some(Ok(Some(owner))) if owners.iter().all(|seen| *seen == Ok(Some(*owner))) => {
                    return *owner;
                }
                _ => wait.again(format!("{owners:?}")).await,
            }
        }
    }

    /// Moves `slot` from one node to another, as an operator's tool does while clients go on: both
    /// are told of the move, the keys move one by one, and then all nodes are told the new owner.
    ///
    /// After each key it sleeps for `pause`. That is no synchronisation but the point: it keeps the
    /// slot half moved (`ASK` and `TRYAGAIN` for the clients) for as long as a test needs it.
    ///
    /// # Panics
    ///
    /// If `from` does not serve the slot, or if a step fails.
    pub async fn migrate_slot(&self, slot: u16, from: usize, to: usize, pause: Duration) {
        let owner = self.node_of(slot).await;
        assert_eq!(owner, from, "slot {slot} must be where it is moved from");
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let slot_text = slot.to_string();
        let set_slot = |state, node: usize| ["CLUSTER", "SETSLOT", &slot_text, state, &self.ids[node]];

        // The target first: a client that the source sends there must not be sent back.
        target.command(&set_slot("IMPORTING", from)).await;
        source.command(&set_slot("MIGRATING", to)).await;

        let mut connection = source.connect().await.expect("the node that a slot is moved from must be there");
        loop {
            let keys: Vec<Vec<u8>> = redis::cmd("CLUSTER")
                .arg("GETKEYSINSLOT")
                .arg(slot)
                .arg(1)
                .query_async(&mut connection)
                .await
                .expect("a node must tell the keys of its slot");
            let Some(key) = keys.first() else { break };
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(target.port());
            // No key here but after KEYS, to be able to pass a password; database 0; 10 seconds.
            migrate.arg("").arg(0).arg(10_000);
            if let Some(password) = target.password() {
                migrate.arg("AUTH").arg(password);
            }
            migrate.arg("KEYS").arg(key);
            // OK, or NOKEY if a client deleted it since: then the next look finds it gone.
            let _: Value = migrate.query_async(&mut connection).await.expect("a key must move to the slot's new node");
            tokio::time::sleep(pause).await;
        }

        // The target first again: if the source were first, the slot would for a moment be
        // nobody's. The source then, because it is where the clients still ask.
        target.command(&set_slot("NODE", to)).await;
        source.command(&set_slot("NODE", to)).await;
        for (index, node) in self.nodes.iter().enumerate() {
            if index != from && index != to && node.is_running() {
                node.command(&set_slot("NODE", to)).await;
            }
        }
        let mut wait = Wait::new(format!("slot {slot} to be on node {to}"));
        loop {
            match self.node_of(slot).await {
                owner if owner == to => return,
                owner => wait.again(format!("it is on {owner}")).await,
            }
        }
    }

    /// The index of the node that `node` takes for the owner of `slot`.
    async fn owner_seen_by(&self, node: &Server, slot: u16) -> RedisResult<Option<usize>> {
        let table = table(node).await?;
        let owner = table.iter().find(|entry| entry.serves(slot));
        Ok(owner.and_then(|entry| self.ids.iter().position(|id| *id == entry.id)))
    }
}

/// What `node` knows of the nodes.
async fn table(node: &Server) -> RedisResult<Vec<TableEntry>> {
    let text: String = node.try_query(&["CLUSTER", "NODES"]).await?;
    Ok(text.lines().map(TableEntry::parse).collect())
}

/// One line of `CLUSTER NODES`.
#[derive(Debug)]
struct TableEntry {
    id: String,
    connected: bool,
    /// First and last, both served.
    slots: Vec<(u16, u16)>,
}

impl TableEntry {
    /// `id address flags master ping-sent pong-received epoch link-state slot slot …`, where a slot
    /// is a number, a range, or in brackets if it is being moved.
    fn parse(line: &str) -> Self {
        let fields: Vec<&str> = line.split(' ').collect();
        let slots = fields.iter().skip(8).filter_map(|field| {
            let (first, last) = field.split_once('-').unwrap_or((field, field));
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        Self { id: fields[0].to_owned(), connected: fields.get(7) == Some(&"connected"), slots: slots.collect() }
    }

    fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

/// The slots that the node `index` of `masters` starts with.
fn slots_of(index: usize, masters: usize) -> std::ops::Range<usize> {
    let slots = usize::from(SLOTS);
    index * slots / masters..(index + 1) * slots / masters
}

/// The slot of `key`: of what stands between its first `{` and the next `}`, if that is something,
/// else of all of it.
///
/// Written anew from the cluster's specification instead of taken from the code under test, so that
/// a test does not check that code against itself.
pub fn key_slot(key: impl AsRef<[u8]>) -> u16 {
    let key = key.as_ref();
    let tag = key
        .iter()
        .position(|byte| *byte == b'{')
        .and_then(|open| {
            let rest = &key[open + 1..];
            let close = rest.iter().position(|byte| *byte == b'}')?;
            (close > 0).then(|| &rest[..close])
        })
        .unwrap_or(key);
    // CRC-16/XMODEM: polynomial 0x1021, from zero, most significant bit first.
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 { shifted } else { shifted ^ 0x1021 }
        })
    });
    crc % SLOTS
}
