//! Redis as it is laid out in earnest: behind TLS, and behind Sentinels that fail over.

use serde_json::json;
use windlass::broker::Broker;
use windlass::broker::redis::{RedisBroker, RedisOptions};
use windlass::protocol::keys::Keys;
use windlass::{NewTask, TaskType};

use super::ground::{Ground, condition_of};
use crate::support::servers::{Flavor, Sentinel, Server};

fn task() -> NewTask {
    NewTask::new(TaskType::new("send").expect("a type"), json!({}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_tls_is_trusted_by_the_authority_in_a_secret() {
    let ground = Ground::new().await;
    let (tls, stranger) =
        (Server::builder(Flavor::Redis70).tls().start().await, Server::builder(Flavor::Redis70).tls().start().await);
    let _operator = ground.operator_with(&[("WINDLASS_REDIS_URL", "")]).await;
    let authority = async |pem: &str| {
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ca"}, "stringData": {"ca.crt": pem}});
        ground.cluster.apply(&ground.namespace, &secret.to_string()).await;
    };
    let url = tls.url();
    let spec = format!(
        "{{broker: {{type: Redis, redis: {{url: \"{url}\", tls: {{caSecretRef: {{name: ca, key: ca.crt}}}}}}}}}}"
    );
    ground.apply("emails", &spec).await;
    ground.shows("emails", "Ready", "False", "SecretNotFound").await;
    authority(stranger.ca_pem()).await;
    let refused = ground.shows("emails", "Ready", "False", "BrokerUnreachable").await;
    let message = &condition_of(&refused, "BrokerConnected").expect("there").message;
    assert!(message.to_lowercase().contains("certificate"), "{message}");
    authority(tls.ca_pem()).await;
    let took = ground.until("the right authority to be taken up", async || {
        let queue = ground.queues().get("emails").await.map_err(|error| error.to_string())?;
        let ready = condition_of(&queue, "Ready").is_some_and(|one| one.status == "True");
        if ready { Ok(()) } else { Err(format!("{:?}", condition_of(&queue, "Ready"))) }
    });
    eprintln!("another certificate authority in the Secret was taken up after {:?}", took.await);
    let keys = Keys::new(&ground.name("emails"));
    let options = RedisOptions { ca_pem: Some(tls.ca_pem().as_bytes().to_vec()), ..RedisOptions::new(url) };
    RedisBroker::new(keys, options).expect("usable").enqueue(&[task()]).await.expect("the queue is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_follows_its_sentinels_to_the_new_master_and_is_whole_there() {
    let ground = Ground::new().await;
    let sentinel = Sentinel::start().await;
    let operator = ground.operator_with(&[("WINDLASS_REDIS_URL", "")]).await;
    let hosts: Vec<String> = sentinel.sentinels().iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let (hosts, name) = (hosts.join(","), sentinel.master_name());
    let spec = format!(
        "{{broker: {{type: Redis, redis: {{url: \"redis://{hosts}\", topology: Sentinel, sentinel: {{masterName: {name}}}}}}}}}"
    );
    ground.apply("emails", &spec).await;
    ground.ready("emails").await;

    sentinel.kill_master().await;
    let master = sentinel.wait_for_new_master().await;
    // What a replica had not received is gone after a failover; here, all of it.
    let broker = ground.broker_on(master, "emails");
    let began = std::time::Instant::now();
    let wipe = ground.until("the new master to be emptied", async || {
        master.try_command(&["FLUSHALL"]).await.map(drop).map_err(|error| error.to_string())
    });
    wipe.await;
    ground
        .until("the queue to be whole on the new master", async || {
            broker.policy().await.map_err(|error| error.to_string())?;
            let groups: Vec<Vec<redis::Value>> =
                master.try_query(&["XINFO", "GROUPS", &broker.keys().task]).await.map_err(|error| error.to_string())?;
            if groups.len() == 2 { Ok(()) } else { Err(format!("{} groups", groups.len())) }
        })
        .await;
    eprintln!("a new master without the queue: whole again after {:?}", began.elapsed());
    broker.enqueue(&[task()]).await.expect("it takes tasks");
    ground.ready("emails").await;
    assert!(operator.is_running());
}
