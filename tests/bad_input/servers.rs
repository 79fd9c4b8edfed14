//! What servers may get wrong: full, locked, elsewhere, asleep or not there.

use std::time::Duration;

use windlass::broker::clock::Clock;
use windlass::broker::redis::{RedisBroker, RedisOptions, ReplicaAck};
use windlass::broker::{
    Broker, BrokerError, Cancelled, ClaimRequest, DiscardRequest, Discarded, EffectBegun, EffectCommitted, EffectMark,
    EffectRequest, ErrorClass, Extended, Recorded, ReplayRequest, Settled, Standing, SweepCursor,
};
use windlass::protocol::keys::Keys;
use windlass::protocol::names::{Capabilities, DeadLetterId};
use windlass::protocol::policy::{Mode, Policy};
use windlass::{State, TaskId};

use super::refusal::{Queue, failure, is_refusal, permanent, settle_at, success, task, worker};
use crate::support::servers::{Flavor, Server, Wait};
use crate::support::{fresh_queue, owner};

const TRANSIENT: ErrorClass = ErrorClass::Transient;
const INVALID: ErrorClass = ErrorClass::Invalid;

/// closes: asynq#799 (eviction of queue data)
#[tokio::test]
async fn settings_that_put_tasks_at_risk_are_told() {
    for flavor in Flavor::ALL {
        let risky = Server::builder(flavor).maxmemory("100mb", "allkeys-lru").start().await;
        let problems = Queue::on(&risky).await.broker.check_server().await.expect("answered");
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("maxmemory-policy is allkeys-lru"), "{problems:?}");
        assert!(problems[0].contains("set it to noeviction"), "{problems:?}");
        assert!(problems[1].contains("set appendonly yes"), "{problems:?}");
        let safe = Server::builder(flavor).aof_always().maxmemory("100mb", "noeviction").start().await;
        assert_eq!(Queue::on(&safe).await.broker.check_server().await.expect("answered"), Vec::<String>::new());
    }
}

/// closes: out of memory refuses the acknowledgement, so a full Redis never drains
#[tokio::test]
async fn a_full_server_refuses_new_tasks_and_drains() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor).await;
        let queue = Queue::on(&server).await;
        let broker = &queue.broker;
        queue.enqueue(task()).await;
        let dead = queue.claim(1).await.remove(0);
        queue.settle(&dead, permanent()).await;
        let letter = DeadLetterId { task: dead.lease.task, epoch: dead.lease.epoch };
        assert_eq!(broker.record_dead_letter(&letter).await.expect("answered"), Recorded::Done);
        queue.enqueue(task()).await;
        let (acting, effect) = (queue.claim(1).await.remove(0), "charge".parse().expect("a valid key"));
        let begin = |mark| EffectRequest { lease: &acting.lease, key: &effect, mark, standing: Standing::Own };
        let (mark, other_mark) = (EffectMark::generate(), EffectMark::generate());
        assert_eq!(broker.begin_effect(&begin(&mark)).await.expect("answered"), EffectBegun::Begin);
        for _ in 0..5 {
            queue.enqueue(task()).await;
        }
        queue.raw(&[("task_id", b"raw"), ("payload", b"{}")]).await;
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;

        queue.refuses(broker.enqueue(&[task()]), TRANSIENT, "is out of memory and takes no new tasks").await;
        let replay = ReplayRequest {
            dead_letter: letter,
            new_id: TaskId::generate(),
            payload: None,
            person: "ada".into(),
            reason: None,
        };
        queue.refuses(broker.replay(&replay), TRANSIENT, "is out of memory").await;
        let mail = "mail".parse().expect("a valid key");
        let another = EffectRequest { key: &mail, ..begin(&other_mark) };
        queue.refuses(broker.begin_effect(&another), TRANSIENT, "is out of memory").await;
        let answer = windlass::Payload::default();
        queue.refuses(broker.report_progress(&acting.lease, &answer), TRANSIENT, "is out of memory").await;
        let committed = broker.commit_effect(&acting.lease, &effect, &answer, Standing::Own).await.expect("answered");
        assert_eq!(committed, EffectCommitted::Committed, "{flavor:?}: what happened is kept");
        assert_eq!(queue.settle(&acting, success()).await, Settled::Succeeded);
        let (person, reason) = ("ada".to_owned(), "obsolete".to_owned());
        let discard = DiscardRequest { dead_letter: replay.dead_letter, person, reason };
        assert_eq!(broker.discard(&discard).await.expect("answered"), Discarded::Done);

        let tasks = queue.claim(10).await;
        assert_eq!(tasks.len(), 6, "{flavor:?}: what is there is given out, raw entries too");
        let renewed = broker.extend(&worker(), std::slice::from_ref(&tasks[0].lease)).await.expect("answered");
        assert_eq!(renewed, [Extended::Renewed]);
        assert_eq!(queue.settle(&tasks[0], success()).await, Settled::Succeeded);
        assert!(matches!(queue.settle(&tasks[1], failure()).await, Settled::Retrying { .. }));
        assert_eq!(queue.settle(&tasks[2], permanent()).await, Settled::Dead);
        let letters = queue.dead_letters().await;
        assert_eq!(broker.record_dead_letter(&letters[0].id).await.expect("answered"), Recorded::Done);
        let cancelled = broker.cancel(&tasks[3].lease.task, "not needed").await.expect("answered");
        assert_eq!(cancelled, Cancelled::Done { from: State::Running });
        broker.deregister(&worker()).await.expect("answered");
        broker.promote(10).await.expect("answered");
        assert_eq!(broker.sweep(Default::default()).await.expect("answered").repaired, []);
        broker.reclaim(Default::default()).await.expect("answered");
        for task in queue.claim(10).await {
            assert_eq!(queue.settle(&task, success()).await, Settled::Succeeded);
        }
        let counts = broker.counts().await.expect("answered");
        assert_eq!((counts.backlog, counts.running, counts.retrying), (0, 0, 1), "{flavor:?}: it drained");
        queue.set(|policy| (policy.retention.succeeded, policy.retention.failed) = Default::default()).await;
        let retained = broker.retain(Default::default(), 100).await.expect("answered");
        assert_eq!((retained.results, retained.dead_letters), (7, 2), "{flavor:?}: what is finished makes room");
        assert_eq!(broker.counts().await.expect("answered").finished, 0);
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
        queue.enqueue(task()).await;
    }
}

#[tokio::test]
async fn a_replica_refuses_every_move_until_it_is_promoted() {
    for flavor in Flavor::ALL {
        let (master, replica) = (Server::start(flavor).await, Server::start(flavor).await);
        let queue = Queue::on(&master).await;
        queue.enqueue(task()).await;
        let running = queue.claim(1).await.remove(0);
        replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).await;
        let mut wait = Wait::new("the replica to have the queue");
        while replica.query::<u64>(&["HEXISTS", &queue.broker.keys().live(), running.lease.task.as_str()]).await != 1 {
            wait.again("no task").await;
        }
        let there = queue.through(RedisOptions::new(replica.url()));
        let sentence = "cannot serve this right now; try again";
        queue.refuses(there.enqueue(&[task()]), TRANSIENT, sentence).await;
        queue.refuses(settle_at(&there, &running, success()), TRANSIENT, sentence).await;
        queue.refuses(there.extend(&worker(), &[]), TRANSIENT, sentence).await;
        let (worker, any) = (worker(), Capabilities::any());
        let request = ClaimRequest { worker: &worker, capabilities: &any, limit: 1, recover: None };
        let error = queue.refuses(there.claim(request), TRANSIENT, sentence).await;
        assert!(error.to_string().contains("READONLY"), "{flavor:?}: {error}");
        assert_eq!(there.counts().await.expect("looking is allowed").running, 1);

        replica.command(&["REPLICAOF", "NO", "ONE"]).await;
        assert_eq!(settle_at(&there, &running, success()).await.expect("answered"), Settled::Succeeded);
    }
}

/// closes: redis#6062 (a failover loses acknowledged writes; an enqueue says what it guarantees)
#[tokio::test]
async fn a_write_that_no_replica_confirms_is_told_and_can_be_repeated() {
    let (master, replica) = (Server::start(Flavor::Redis70).await, Server::start(Flavor::Redis70).await);
    let replicas = Some(ReplicaAck { count: 1, timeout: Duration::from_millis(100) });
    let queue = Queue::with_options(&master, RedisOptions { replicas, ..RedisOptions::new(master.url()) }).await;
    let one = task();
    let error = queue.broker.enqueue(std::slice::from_ref(&one)).await.expect_err("nobody confirms");
    is_refusal(&error, TRANSIENT, "only 0 of 1 replicas confirmed in time: repeat with the same task ids");
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]).await;
    let mut wait = Wait::new("the replica to confirm");
    let again = loop {
        match queue.broker.enqueue(std::slice::from_ref(&one)).await {
            Ok(answer) => break answer,
            Err(error) => {
                assert_eq!(error.class(), TRANSIENT);
                wait.again(error).await;
            }
        }
    };
    assert!(!again[0].created, "it was taken the first time");
    assert_eq!(queue.claim(10).await.len(), 1);
}

/// closes: a producer that repeats for ever what can never be taken, because a replica is down
#[tokio::test]
async fn what_is_refused_is_refused_with_its_reason_though_no_replica_confirms() {
    let server = Server::start(Flavor::Redis70).await;
    let replicas = Some(ReplicaAck { count: 1, timeout: Duration::from_millis(100) });
    let queue = Queue::with_options(&server, RedisOptions { replicas, ..RedisOptions::new(server.url()) }).await;
    let enqueue = async |task| queue.broker.enqueue(&[task]).await.expect_err("nobody confirms");
    let too_urgent = windlass::NewTask { priority: Some(255), ..task() };
    is_refusal(&enqueue(too_urgent).await, INVALID, "priority");
    assert!(matches!(enqueue(task()).await, BrokerError::NotReplicated { .. }), "it was taken");
    queue.set(|policy| policy.limits.outbox_entries = 1).await;
    assert!(matches!(enqueue(task()).await, BrokerError::OutboxFull(_)));
    queue.set(|policy| policy.mode = Mode::Closed).await;
    assert!(matches!(enqueue(task()).await, BrokerError::Closed(_)));
}

/// closes: one replica that is down holds up every claim and heartbeat of the process
#[tokio::test]
async fn nothing_else_waits_behind_an_enqueue_that_waits_for_replicas() {
    let server = Server::start(Flavor::Redis70).await;
    let replicas = Some(ReplicaAck { count: 1, timeout: Duration::from_secs(600) });
    let queue = Queue::with_options(&server, RedisOptions { replicas, ..RedisOptions::new(server.url()) }).await;
    let one = task();
    tokio::select! {
        biased;
        answer = queue.broker.enqueue(std::slice::from_ref(&one)) => panic!("nobody confirms: {answer:?}"),
        () = async {
            let mut wait = Wait::new("the task to be there, though not confirmed");
            let running = loop {
                match queue.claim(1).await.pop() {
                    Some(task) => break task,
                    None => wait.again("nothing").await,
                }
            };
            assert_eq!(running.lease.task, one.id);
            assert_eq!(queue.settle(&running, success()).await, Settled::Succeeded);
        } => {}
    }
}

#[tokio::test]
async fn a_server_that_is_loading_its_data_is_busy_and_then_serves() {
    for flavor in Flavor::ALL {
        // A tenth of a second a key; clients are answered once in two megabytes.
        let server =
            Server::builder(flavor).config("key-load-delay", "100000").config("rdbcompression", "no").start().await;
        let queue = Queue::on(&server).await;
        let id = queue.enqueue(task()).await;
        let ballast = "x".repeat(1 << 20);
        for number in 0..20 {
            server.command(&["SET", &format!("ballast{number}"), &ballast]).await;
        }
        server.command(&["SAVE"]).await;
        let impatient = queue.through(RedisOptions {
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(2),
            ..RedisOptions::new(server.url())
        });
        let mut seen = None;
        tokio::join!(server.restart(), async {
            let mut wait = Wait::new("the server to say that it is loading");
            while seen.is_none() {
                match impatient.enqueue(&[task()]).await {
                    Err(error) if error.to_string().contains("LOADING") => seen = Some(error),
                    other => wait.again(format!("{other:?}")).await,
                }
            }
        });
        is_refusal(&seen.expect("a refusal"), TRANSIENT, "cannot serve this right now; try again");
        let mut wait = Wait::new("the same broker to serve again");
        while let Err(error) = impatient.counts().await {
            assert_eq!(error.class(), TRANSIENT, "{error}");
            wait.again(error).await;
        }
        assert_eq!(impatient.get(&id).await.expect("answered").expect("it was saved").state, State::Queued);
    }
}

#[tokio::test]
async fn without_its_password_a_server_lets_nobody_in() {
    for flavor in Flavor::ALL {
        let server = Server::builder(flavor).password("open sesame").start().await;
        let queue = Queue::on(&server).await;
        let plain = format!("redis://127.0.0.1:{}", server.port());
        let wrong = format!("redis://:hunter2@127.0.0.1:{}", server.port());
        for url in [plain, wrong] {
            let outside = queue.through(RedisOptions::new(url));
            let sentence = "refused access: check user, password and ACL";
            let error = queue.refuses(outside.enqueue(&[task()]), INVALID, sentence).await;
            assert!(matches!(error, BrokerError::Denied(_)), "{error:?}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
            let mut bed = outside.sleeper(&Capabilities::any()).await.expect("a bed");
            let slept = bed.sleep(Mode::Running, Duration::from_millis(10));
            is_refusal(&slept.await.expect_err("no access"), INVALID, sentence);
        }
        queue.enqueue(task()).await;
    }
}

#[tokio::test]
async fn a_user_without_the_right_is_refused() {
    for flavor in Flavor::ALL {
        let server = Server::builder(flavor)
            .acl("elsewhere on >secret ~other:* &* +@all")
            .acl("scriptless on >secret ~* &* +@all -eval -evalsha")
            .acl("reader on >secret ~* &* +@all -@write")
            .start()
            .await;
        let queue = Queue::on(&server).await;
        queue.enqueue(task()).await;
        let running = queue.claim(1).await.remove(0);
        for user in ["elsewhere", "scriptless", "reader"] {
            let limited = queue.through(RedisOptions::new(server.url_as(user, "secret")));
            let sentence = "refused access: check user, password and ACL";
            let error = queue.refuses(limited.enqueue(&[task()]), INVALID, sentence).await;
            assert!(matches!(error, BrokerError::Denied(_)), "{flavor:?} {user}: {error:?}");
            assert!(!error.to_string().contains("secret"), "{error}");
            queue.refuses(settle_at(&limited, &running, failure()), INVALID, sentence).await;
        }
        assert!(matches!(queue.settle(&running, failure()).await, Settled::Retrying { .. }));
    }
}

/// A settlement stops at the command that its user may not give, with the result written before it. Nothing of it is
/// lost or happens twice: said again it is known, and what it left behind is cleared by the leader's loops.
#[tokio::test]
async fn a_settlement_that_a_missing_right_cuts_off_heals_once_the_right_is_given() {
    for flavor in Flavor::ALL {
        for missing in ["xack", "xdel"] {
            let server =
                Server::builder(flavor).acl(&format!("limited on >secret ~* &* +@all -{missing}")).start().await;
            let (keys, clock) = (Keys::new(&fresh_queue()), Clock::manual(1_700_000_000_000));
            let at = |url| RedisBroker::with_clock(keys.clone(), RedisOptions::new(url), clock.clone());
            let (broker, limited) =
                (at(server.url()).expect("a URL"), at(server.url_as("limited", "secret")).expect("a URL"));
            let policy = Policy::default();
            broker.provision(&owner(), &policy).await.expect("made");
            broker.enqueue(&[task(), task()]).await.expect("taken");
            let (worker, any) = (worker(), Capabilities::any());
            let request = ClaimRequest { worker: &worker, capabilities: &any, limit: 2, recover: None };
            let tasks = broker.claim(request).await.expect("answered").tasks;
            let ends = [success(), permanent()];
            for (task, end) in tasks.iter().zip(&ends) {
                let error = settle_at(&limited, task, end.clone()).await.expect_err("it may not");
                is_refusal(&error, INVALID, "refused access: check user, password and ACL");
            }
            for (task, end) in tasks.iter().zip(&ends) {
                let again = settle_at(&broker, task, end.clone()).await.expect("answered");
                assert_eq!(again, Settled::AlreadySettled, "{flavor:?} without {missing}");
            }
            clock.advance(policy.visibility_timeout);
            let reclaimed = broker.reclaim(Default::default()).await.expect("answered");
            assert_eq!((reclaimed.requeued, reclaimed.dead), (vec![], vec![]), "{flavor:?}: what has ended stays so");
            let mut cursor = Some(SweepCursor::default());
            while let Some(from) = cursor {
                cursor = broker.sweep(from).await.expect("answered").next;
            }
            let counts = broker.counts().await.expect("answered");
            let left = (counts.running, counts.backlog, counts.finished, counts.dlq_pending);
            assert_eq!(left, (0, 0, 1, 1), "{flavor:?} without {missing}");
            let request = ClaimRequest { worker: &worker, capabilities: &any, limit: 2, recover: None };
            assert_eq!(broker.claim(request).await.expect("answered").tasks, [], "{flavor:?}: nothing runs again");
        }
    }
}

/// A tenant's user has its own keys and nothing else: not even the channel that tells the leader.
#[tokio::test]
async fn a_user_with_the_queues_keys_alone_can_do_everything() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor).await;
        let queue = Queue::on(&server).await;
        let pattern = format!("~{}*", queue.broker.keys().prefix());
        server.command(&["ACL", "SETUSER", "tenant", "on", ">secret", "resetchannels", &pattern, "+@all"]).await;
        let tenant = queue.through(RedisOptions::new(server.url_as("tenant", "secret")));
        let delayed = windlass::NewTask { not_before: windlass::NotBefore::After(Duration::from_secs(60)), ..task() };
        tenant.enqueue(&[task(), task(), task(), delayed]).await.expect("taken");
        let (worker, any) = (worker(), Capabilities::any());
        let request = ClaimRequest { worker: &worker, capabilities: &any, limit: 10, recover: None };
        let tasks = tenant.claim(request).await.expect("answered").tasks;
        assert_eq!(tasks.len(), 3);
        assert_eq!(settle_at(&tenant, &tasks[0], success()).await.expect("answered"), Settled::Succeeded);
        let failed = settle_at(&tenant, &tasks[1], failure()).await.expect("answered");
        assert!(matches!(failed, Settled::Retrying { .. }), "{flavor:?}: {failed:?}");
        assert_eq!(settle_at(&tenant, &tasks[2], permanent()).await.expect("answered"), Settled::Dead);
        assert_eq!(tenant.sweep(Default::default()).await.expect("answered").repaired, [], "{flavor:?}");
    }
}

#[tokio::test]
async fn no_server_at_all_is_told_within_the_connection_timeout() {
    let gone = Server::start(Flavor::Redis70).await;
    let queue = Queue::on(&gone).await;
    let options = RedisOptions {
        connect_timeout: Duration::from_millis(500),
        ..RedisOptions::new(format!("redis://user:hunter2@127.0.0.1:{}", gone.port()))
    };
    let broker = queue.through(options);
    gone.kill9();
    for _ in 0..2 {
        let error = broker.enqueue(&[task()]).await.expect_err("nobody is there");
        assert!(matches!(error, BrokerError::Unreachable { .. }), "{error:?}");
        is_refusal(&error, TRANSIENT, &format!("127.0.0.1:{} was not reached: check that it runs", gone.port()));
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_told_within_the_timeouts() {
    let server = Server::start(Flavor::Redis70).await;
    let queue = Queue::on(&server).await;
    let id = queue.enqueue(task()).await;
    let impatient = RedisOptions {
        connect_timeout: Duration::from_millis(500),
        response_timeout: Duration::from_millis(500),
        ..RedisOptions::new(server.url())
    };
    let (connected, fresh) = (queue.through(impatient.clone()), queue.through(impatient));
    let mut wait = Wait::new("a connection");
    while let Err(error) = connected.get(&id).await {
        wait.again(error).await;
    }
    server.freeze().await;
    for broker in [&connected, &fresh, &connected] {
        let answer = tokio::time::timeout(Duration::from_secs(60), broker.get(&id)).await;
        let error = answer.expect("well within the timeouts that others have").expect_err("frozen");
        assert!(matches!(error, BrokerError::Unreachable { .. }), "{error:?}");
        assert_eq!(error.class(), TRANSIENT);
    }
    server.thaw().await;
    let mut wait = Wait::new("the same broker to work again");
    while let Err(error) = fresh.get(&id).await {
        wait.again(error).await;
    }
}
