//! A queue's beginning and end: who has it, whether it is whole, and how nothing of it is left.

use windlass::broker::redis::{Intact, Removal, Removed};
use windlass::broker::{BrokerError, Owner, Takeover};
use windlass::protocol::keys::AdoptedKeys;
use windlass::protocol::policy::Policy;

use super::fixture::{Fixture, failure, owner, task};

/// Removes the queue, step by step; how many steps it took.
async fn remove(fx: &Fixture, removal: Removal) -> usize {
    for step in 1..1000 {
        match fx.redis_broker().remove(&owner().name, removal).await.expect("answered") {
            Removed::More => assert!(
                matches!(fx.broker.policy().await, Err(BrokerError::NoQueue(_))),
                "from the first step on nobody finds it"
            ),
            Removed::Done => return step,
            other => panic!("{other:?}"),
        }
    }
    panic!("it never ends")
}

/// Every key that tells of the queue; on the server that has it.
async fn keys(fx: &Fixture) -> Vec<String> {
    fx.redis(&["KEYS", &format!("{}*", fx.keys().prefix())]).await
}

/// A queue with a bit of everything in it.
async fn fill(fx: &Fixture) {
    let died = fx.running("b").await;
    fx.bury(&died).await;
    for kind in ["a", "b", "c"] {
        for _ in 0..60 {
            fx.add(kind).await;
        }
    }
    for _ in 0..3 {
        let running = fx.claim_one().await;
        fx.settle(&running, failure()).await;
    }
    let done = fx.claim_one().await;
    fx.succeed(&done).await;
    fx.raw(&[("task_id", "raw"), ("payload", "{}")]).await;
}

async fn a_queue_is_whole_until_somebody_changes_it(fx: &Fixture) {
    let (broker, policy) = (fx.redis_broker(), Policy::default());
    let whole = broker.inspect(&policy).await.expect("answered");
    assert_eq!(whole.owner.as_deref(), Some(owner().name.as_str()));
    assert_eq!((whole.policy, whole.groups, whole.removal_begun), (Intact::Yes, Intact::Yes, false));
    let other = Policy { discard_approvals: 2, ..policy.clone() };
    assert_eq!(broker.inspect(&other).await.expect("answered").policy, Intact::No, "another policy is wanted");

    let key = fx.keys().policy();
    let _: redis::Value = fx.redis(&["HSET", &key, "foreign", "field"]).await;
    assert_eq!(broker.inspect(&policy).await.expect("answered").policy, Intact::Yes, "what is not ours is left alone");
    for field in ["mode", "hot", "spec", "retention"] {
        let _: redis::Value = fx.redis(&["HSET", &key, field, "x"]).await;
        assert_eq!(broker.inspect(&policy).await.expect("answered").policy, Intact::No, "{field}");
        assert_eq!(broker.is_intact(&policy).await.expect("answered"), Intact::No, "{field}");
        fx.broker.provision(&owner(), &policy).await.expect("put right");
        assert_eq!(broker.inspect(&policy).await.expect("answered").policy, Intact::Yes, "{field}");
        assert_eq!(broker.is_intact(&policy).await.expect("answered"), Intact::Yes, "{field}");
    }
    let _: redis::Value = fx.redis(&["XGROUP", "DESTROY", &fx.keys().task, &fx.keys().group]).await;
    let groups = async || {
        let inspected = broker.inspect(&policy).await.expect("answered").groups;
        assert_eq!(broker.is_intact(&policy).await.expect("answered"), inspected);
        inspected
    };
    assert_eq!(groups().await, Intact::No);
    fx.broker.provision(&owner(), &policy).await.expect("put right");
    fx.promote(1).await;
    assert_eq!(groups().await, Intact::Yes);
    let _: redis::Value = fx.redis(&["DEL", &fx.keys().task]).await;
    assert_eq!(groups().await, Intact::No, "there is no stream");
    let _: redis::Value = fx.redis(&["DEL", &key, &fx.keys().meta()]).await;
    let gone = broker.inspect(&policy).await.expect("answered");
    assert_eq!((gone.owner, gone.policy), (None, Intact::No));
}

async fn a_removal_takes_all_of_a_queue_in_bounded_steps(fx: &Fixture) {
    fill(fx).await;
    assert!(keys(fx).await.len() > 15);
    let steps = remove(fx, Removal::WithTasks).await;
    assert!(steps > 2, "183 live tasks in {steps} steps");
    assert_eq!(keys(fx).await, Vec::<String>::new());
    fx.broker.provision(&owner(), &Policy::default()).await.expect("it may begin anew");
    assert_eq!(fx.counts().await.backlog, 0);
    assert!(fx.enqueue(task("a")).await.created);
}

async fn a_removal_that_was_cut_off_is_taken_up(fx: &Fixture) {
    fill(fx).await;
    let first = fx.redis_broker().remove(&owner().name, Removal::IfEmpty).await.expect("answered");
    assert!(matches!(first, Removed::Busy { .. }));
    assert_eq!(
        fx.redis_broker().remove(&owner().name, Removal::WithTasks).await.expect("answered"),
        Removed::More,
        "the first step"
    );
    let inspected = fx.redis_broker().inspect(&Policy::default()).await.expect("answered");
    assert!(inspected.removal_begun && inspected.owner.is_some());
    remove(fx, Removal::IfEmpty).await;
    assert_eq!(keys(fx).await, Vec::<String>::new(), "what was begun is ended, whatever was asked for later");
    let again = fx.redis_broker().remove(&owner().name, Removal::WithTasks).await.expect("answered");
    assert_eq!(again, Removed::Done, "nothing to remove is no error");
}

async fn a_queue_that_is_not_empty_is_left_whole_if_that_was_asked(fx: &Fixture) {
    let broker = fx.redis_broker();
    let id = fx.add("a").await;
    let busy = broker.remove(&owner().name, Removal::IfEmpty).await.expect("answered");
    assert_eq!(busy, Removed::Busy { live: 1, dead_letters: 0, raw_entries: 0 });
    let task = fx.claim_one().await;
    assert_eq!(task.lease.task, id, "nothing was changed");
    fx.succeed(&task).await;
    fx.raw(&[("task_id", "raw"), ("payload", "{}")]).await;
    let busy = broker.remove(&owner().name, Removal::IfEmpty).await.expect("answered");
    assert_eq!(busy, Removed::Busy { live: 0, dead_letters: 0, raw_entries: 1 });
    let raw = fx.claim_one().await;
    fx.bury(&raw).await;
    let busy = broker.remove(&owner().name, Removal::IfEmpty).await.expect("answered");
    assert_eq!(busy, Removed::Busy { live: 0, dead_letters: 1, raw_entries: 0 });
}

async fn only_its_owner_removes_a_queue(fx: &Fixture) {
    fx.add("a").await;
    let refused = fx.redis_broker().remove("rival", Removal::WithTasks).await.expect("answered");
    assert_eq!(refused, Removed::Owned { owner: owner().name });
    assert_eq!(fx.counts().await.backlog, 1);
}

async fn an_adopted_stream_has_one_queue_and_outlives_it(fx: &Fixture) {
    let adopted =
        AdoptedKeys { task: Some("t".into()), result: Some("r".into()), dead_letter: None, group: Some("cg".into()) };
    let first = fx.adopting(&adopted).await;
    first.set(|_| {}).await;
    first.raw(&[("task_id", "raw"), ("payload", "{}")]).await;

    let rival = first.rival().await;
    let other = Owner { name: "rival".to_owned(), takeover: Takeover::Respect };
    let refused = rival.broker.provision(&other, &Policy::default()).await.expect_err("the stream is taken");
    assert!(matches!(&refused, BrokerError::Owned { owner: by, .. } if *by == owner().name), "{refused}");
    let heir = Owner { takeover: Takeover::From(owner().name), ..other.clone() };
    rival.broker.provision(&heir, &Policy::default()).await.expect("on purpose it may");
    let inspected = first.redis_broker().inspect(&Policy::default()).await.expect("answered");
    assert_eq!(inspected.owner.as_deref(), Some("rival"), "the first one notices");

    let back = Owner { takeover: Takeover::From("rival".to_owned()), ..owner() };
    first.broker.provision(&back, &Policy::default()).await.expect("taken back");
    remove(&first, Removal::WithTasks).await;
    let task = &first.keys().task;
    let length: u64 = first.redis(&["XLEN", task]).await;
    assert_eq!(length, 1, "the entry that others wrote is still there");
    let groups: Vec<redis::Value> = first.redis(&["XINFO", "GROUPS", task]).await;
    assert!(groups.is_empty());
    rival.broker.provision(&other, &Policy::default()).await.expect("the stream is free");
}

redis_suite! {
    a_queue_is_whole_until_somebody_changes_it,
    a_removal_takes_all_of_a_queue_in_bounded_steps,
    a_removal_that_was_cut_off_is_taken_up,
    a_queue_that_is_not_empty_is_left_whole_if_that_was_asked,
    only_its_owner_removes_a_queue,
    an_adopted_stream_has_one_queue_and_outlives_it,
}
