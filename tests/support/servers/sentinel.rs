//! A master, its replica, and the sentinels that fail over.

use std::collections::HashMap;

use redis::RedisResult;

use super::{Flavor, Server, Wait};

/// The name under which the sentinels know the master.
const MASTER_NAME: &str = "windlass";

/// How many of the sentinels must agree that the master is down.
const QUORUM: u8 = 2;

/// For how long a sentinel must not have heard of a node to take it for down, in milliseconds.
///
/// Not less: a sentinel connects to a node at most once a second, and drops its connections in a
/// failover. With one second here it now and then takes the new master for down right afterwards,
/// and fails over again, to the old one if that is back, and the data is lost.
const DOWN_AFTER: &str = "2000";

/// One master, one replica, and three sentinels that watch them and promote the replica when two of
/// them have not heard of the master for two seconds.
///
/// A sentinel that tells a node its new role also has it close its clients' connections. So what
/// waits for nodes here takes a broken connection for "not yet".
#[derive(Debug)]
pub struct Sentinel {
    /// The first one is the first master.
    nodes: [Server; 2],
    sentinels: Vec<Server>,
}

impl Sentinel {
    /// Starts all five on Redis 7.0, and returns once a failover would work.
    ///
    /// # Panics
    ///
    /// If one of them does not start or they do not find each other.
    pub async fn start() -> Self {
        Self::start_with(Flavor::Redis70).await
    }

    /// As [`Sentinel::start`], on any flavour.
    ///
    /// # Panics
    ///
    /// If one of them does not start or they do not find each other.
    pub async fn start_with(flavor: Flavor) -> Self {
        // Otherwise the master waits for seconds for more replicas to come.
        let node = || Server::builder(flavor).config("repl-diskless-sync-delay", "0");
        let master = node().start().await;
        let address = format!("127.0.0.1 {}", master.port());
        let replica = node().config("replicaof", &address).start().await;
        // Before the sentinels start: these ask a master for its replicas at once, and then only
        // every ten seconds.
        wait_for_replica(&replica, &master).await;

        let mut sentinels = Vec::new();
        for _ in 0..3 {
            let set = |name: &str, value: &str| format!("{name} {MASTER_NAME} {value}");
            let sentinel = Server::builder(flavor)
                .sentinel()
                .config("sentinel", &set("monitor", &format!("{address} {QUORUM}")))
                .config("sentinel", &set("down-after-milliseconds", DOWN_AFTER))
                .config("sentinel", &set("failover-timeout", "5000"))
                .start()
                .await;
            sentinels.push(sentinel);
        }
        let sentinel = Self { nodes: [master, replica], sentinels };
        sentinel.wait_until_ready().await;
        sentinel
    }

    /// The urls of the sentinels, which a client asks for the master.
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The name to ask the sentinels for.
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    /// The sentinels, e.g. to kill one: two are enough.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Both data nodes; the first one is the first master.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The master that all running sentinels agree on, dead or alive.
    ///
    /// # Panics
    ///
    /// If they do not come to agree.
    pub async fn master(&self) -> &Server {
        let mut wait = Wait::new("the sentinels to agree on the master");
        loop {
            match self.agreed_master().await {
                Ok(master) => return master,
                Err(seen) => wait.again(seen).await,
            }
        }
    }

    /// Kills the current master with SIGKILL.
    ///
    /// # Panics
    ///
    /// If the sentinels do not agree which one that is.
    pub async fn kill_master(&self) {
        self.master().await.kill9();
    }

    /// Returns the new master, once all running sentinels agree on it and it takes writes.
    ///
    /// # Panics
    ///
    /// If the failover does not happen.
    pub async fn wait_for_new_master(&self) -> &Server {
        let mut wait = Wait::new("the sentinels to have promoted the replica");
        loop {
            let seen = match self.agreed_master().await {
                Ok(master) if !master.is_running() => "still the dead master".to_owned(),
                Ok(master) => match master.try_info("replication").await {
                    Ok(info) if is(&info, "role", "master") => return master,
                    answer => format!("the new master says {answer:?}"),
                },
                Err(seen) => seen,
            };
            wait.again(seen).await;
        }
    }

    /// Starts the killed data node again, as a replica of the new master, and returns once the
    /// sentinels could fail back to it.
    ///
    /// The node is told at once whom to follow. The sentinels would tell it, but only after some
    /// twenty seconds, for which it is a second master; a test that wants to see that restarts it
    /// itself, by [`Sentinel::nodes`].
    ///
    /// # Panics
    ///
    /// If that does not come to pass.
    pub async fn revive(&self) {
        let master = self.wait_for_new_master().await;
        for node in &self.nodes {
            if !node.is_running() {
                node.restart().await;
                let port = master.port().to_string();
                node.command(&["REPLICAOF", "127.0.0.1", &port]).await;
                wait_for_replica(node, master).await;
            }
        }
        self.wait_until_ready().await;
    }

    /// The master, if all running sentinels name the same one.
    async fn agreed_master(&self) -> Result<&Server, String> {
        let mut answers = Vec::new();
        for sentinel in self.sentinels.iter().filter(|one| one.is_running()) {
            let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME];
            let answer = sentinel.try_query::<(String, u16)>(&command).await;
            answers.push(answer.map(|(_, port)| port));
        }
        let agreed = |node: &&Server| answers.iter().all(|port| *port == Ok(node.port()));
        match self.nodes.iter().find(agreed) {
            Some(node) if !answers.is_empty() => Ok(node),
            _ => Err(format!("the ports {answers:?}")),
        }
    }

    /// Returns once every running sentinel sees a healthy master and replica and enough sentinels.
    async fn wait_until_ready(&self) {
        for (index, sentinel) in self.sentinels.iter().enumerate() {
            let mut wait = Wait::new(format!("sentinel {index} to be able to fail over"));
            while sentinel.is_running() {
                match self.unreadiness(sentinel).await {
                    Ok(None) => break,
                    Ok(Some(seen)) => wait.again(seen).await,
                    Err(error) => wait.again(error).await,
                }
            }
        }
    }

    /// Nothing if `sentinel` could fail over, else what it sees.
    async fn unreadiness(&self, sentinel: &Server) -> RedisResult<Option<String>> {
        let ask = |what| ["SENTINEL", what, MASTER_NAME];
        let master: Fields = sentinel.try_query(&ask("MASTER")).await?;
        let replicas: Vec<Fields> = sentinel.try_query(&ask("REPLICAS")).await?;
        // An error if not.
        sentinel.try_command(&ask("CKQUORUM")).await?;
        let others = (self.sentinels.len() - 1).to_string();
        let ready = is(&master, "flags", "master")
            && is(&master, "num-other-sentinels", &others)
            && replicas.len() == 1
            && replicas.iter().all(|replica| is(replica, "flags", "slave") && is(replica, "master-link-status", "ok"));
        Ok((!ready).then(|| format!("{master:?}, {replicas:?}")))
    }
}

/// The fields of a node, as it or a sentinel tells them.
type Fields = HashMap<String, String>;

/// Whether the field `name` is there and has `value`.
fn is(fields: &Fields, name: &str, value: &str) -> bool {
    fields.get(name).is_some_and(|found| found == value)
}

/// Returns once `replica` follows `master` and has its data.
async fn wait_for_replica(replica: &Server, master: &Server) {
    let port = master.port().to_string();
    let mut wait = Wait::new("the replica to follow the master");
    loop {
        match replica.try_info("replication").await {
            Ok(info) if is(&info, "master_port", &port) && is(&info, "master_link_status", "up") => {
                return;
            }
            answer => wait.again(format!("{answer:?}")).await,
        }
    }
}
