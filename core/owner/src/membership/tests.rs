//! Members with a bucket in memory: joining, eviction, release, leaving.

use super::*;

const SHARDS: usize = 16;

/// A lease bucket with coordinators that hear of its changes at once.
struct Bucket {
    now: Instant,
    revision: u64,
    keys: BTreeMap<Key, (Option<String>, u64)>,
    members: Vec<Membership>,
    /// Members that are cut off: their requests stay unanswered, and they hear of no changes.
    cut: BTreeSet<usize>,
    notices: Vec<Notice>,
}

impl Bucket {
    fn new() -> Self {
        let (keys, now) = (BTreeMap::new(), Instant::now());
        Self { now, revision: 0, keys, members: Vec::new(), cut: BTreeSet::new(), notices: Vec::new() }
    }

    fn join(&mut self) -> usize {
        self.join_as(&format!("127.0.0.1:80 1.0 {CARRIES}"))
    }

    fn join_as(&mut self, label: &str) -> usize {
        let name = format!("member{}", self.members.len());
        let mut member = Membership::new(name, label.to_owned(), SHARDS, self.now);
        for (key, (value, revision)) in &self.keys {
            let (key, value) = (key.clone(), value.clone());
            member.handle_change(Change { key, value, revision: *revision, age: Duration::ZERO }, self.now);
        }
        member.handle_all_seen(self.now);
        self.members.push(member);
        self.settle();
        self.members.len() - 1
    }

    /// Performs a request as the broker does.
    fn perform(&mut self, request: &Request) -> (Answer, Option<Change>) {
        let found = self.keys.get(&request.key).cloned();
        if found.as_ref().map_or(0, |(_, revision)| *revision) != request.revision {
            return (Answer::Conflict(found.map(|(value, revision)| Found { value, revision })), None);
        }
        self.revision += 1;
        let value = match &request.operation {
            Operation::Put(value) => Some(value.clone()),
            Operation::Delete | Operation::Purge => None,
        };
        self.keys.insert(request.key.clone(), (value.clone(), self.revision));
        let change = Change { key: request.key.clone(), value, revision: self.revision, age: Duration::ZERO };
        (Answer::Stored(self.revision), Some(change))
    }

    /// Performs the actions of all members until there are none.
    fn settle(&mut self) {
        while let Some((at, action)) =
            (0..self.members.len()).find_map(|at| self.members[at].poll_action().map(|action| (at, action)))
        {
            match action {
                Action::Publish => {}
                Action::Report(notice) => self.notices.push(notice),
                Action::Send(request) if self.cut.contains(&at) => {
                    self.members[at].handle_answer(request, Answer::Unknown, self.now);
                }
                Action::Send(request) => {
                    let (answer, change) = self.perform(&request);
                    self.members[at].handle_answer(request, answer, self.now);
                    let hears = |at: &usize| !self.cut.contains(at);
                    for other in (0..self.members.len()).filter(hears).collect::<Vec<_>>() {
                        change.iter().for_each(|change| self.members[other].handle_change(change.clone(), self.now));
                    }
                }
            }
        }
    }

    /// Lets time pass. Snapshots of released shards are stored at once if `snapshots`.
    fn wait(&mut self, time: Duration, snapshots: bool) {
        let until = self.now + time;
        self.settle();
        while self.now < until {
            self.now = (self.now + Duration::from_millis(100)).min(until);
            for at in 0..self.members.len() {
                let leaving = self.members[at].claims().leaving();
                for shard in leaving.iter().filter(|_| snapshots) {
                    self.members[at].handle_snapshot_stored(shard, self.now);
                }
                if self.members[at].poll_timeout().is_some_and(|at| at <= self.now) {
                    self.members[at].handle_timeout(self.now);
                }
            }
            self.settle();
        }
    }

    fn kept(&self, at: usize) -> usize {
        self.members[at].claims().kept().len()
    }

    fn acts(&self, at: usize) -> bool {
        self.now < self.members[at].until()
    }

    fn crash(&mut self, at: usize) {
        self.cut.insert(at);
    }
}

#[test]
fn a_member_that_is_alone_owns_all_shards_and_a_second_gets_half_of_them_after_their_snapshots() {
    let mut bucket = Bucket::new();
    let first = bucket.join();
    assert_eq!(bucket.kept(first), 16);
    let second = bucket.join();
    assert_eq!((bucket.kept(first), bucket.kept(second)), (8, 0), "a released shard is not claimed yet");
    assert_eq!(bucket.members[first].claims().leaving().len(), 8);
    bucket.wait(Duration::from_millis(100), true);
    assert_eq!((bucket.kept(first), bucket.kept(second)), (8, 8));
    let both = bucket.members[first].claims().claimed().union(bucket.members[second].claims().claimed());
    assert_eq!(both.len(), 16);
    assert!(bucket.notices.is_empty());
}

#[test]
fn a_shard_whose_snapshot_is_not_stored_in_time_is_released_without_it() {
    let mut bucket = Bucket::new();
    let (first, second) = (bucket.join(), bucket.join());
    bucket.wait(RELEASE_PATIENCE - CHECK, false);
    assert_eq!((bucket.kept(first), bucket.kept(second)), (8, 0));
    bucket.wait(CHECK * 2, false);
    assert_eq!((bucket.kept(first), bucket.kept(second)), (8, 8));
    let without = |notice: &&Notice| matches!(notice, Notice::ReleasedWithoutSnapshot { .. });
    assert_eq!(bucket.notices.iter().filter(without).count(), 8);
}

#[test]
fn a_member_that_cannot_renew_stops_acting_before_it_is_evicted_and_joins_again_under_another_id() {
    let mut bucket = Bucket::new();
    let (first, second) = (bucket.join(), bucket.join());
    bucket.wait(Duration::from_secs(10), true);
    let id = bucket.members[first].id.clone();
    bucket.crash(first);
    while bucket.acts(first) {
        assert_eq!(bucket.kept(second), 8, "it is not robbed while it acts");
        bucket.wait(Duration::from_millis(100), true);
    }
    bucket.wait(MARGIN - Duration::from_millis(300), true);
    assert_eq!(bucket.kept(second), 8, "nor for a while after");
    bucket.wait(LEASE, true);
    assert_eq!(bucket.kept(second), 16);
    assert!(bucket.notices.contains(&Notice::MemberLost { member: id.clone() }));
    bucket.cut.clear();
    bucket.members[first].handle_missed(bucket.now);
    bucket.wait(RENEWAL, true);
    let evicted = |notice: &Notice| matches!(notice, Notice::Evicted { member, .. } if *member == id);
    assert!(bucket.notices.iter().any(evicted), "its renewal met a conflict: {:?}", bucket.notices);
    assert!(bucket.members[first].is_member() && bucket.members[first].id != id);
    assert_eq!(bucket.kept(first), 0);
}

#[test]
fn a_shard_is_not_claimed_before_the_eviction_of_its_owner_is_confirmed() {
    let now = Instant::now();
    let mut member = Membership::new("me".to_owned(), "label".to_owned(), 1, now);
    let Some(Action::Send(join)) = member.poll_action() else { panic!("it joins") };
    member.handle_answer(join, Answer::Stored(1), now);
    let change = |key, value: &str, revision| Change { key, value: Some(value.into()), revision, age: Duration::ZERO };
    member.handle_change(change(Key::Member("other".into()), "label", 2), now);
    member.handle_change(change(Key::Shard(Shard(0)), "other", 3), now);
    member.handle_all_seen(now);
    let sent = |member: &mut Membership| {
        std::iter::from_fn(|| member.poll_action())
            .filter_map(|action| if let Action::Send(request) = action { Some(request) } else { None })
            .collect::<Vec<_>>()
    };
    assert!(sent(&mut member).is_empty());
    for second in [2, 4] {
        let now = now + Duration::from_secs(second);
        member.handle_timeout(now);
        sent(&mut member)
            .into_iter()
            .for_each(|renewal| member.handle_answer(renewal, Answer::Stored(3 + second), now));
    }
    let now = now + LEASE;
    member.handle_timeout(now);
    let mut requests = sent(&mut member);
    let at = requests.iter().position(|request| request.key == Key::Member("other".into())).expect("it evicts");
    let eviction = requests.swap_remove(at);
    assert_eq!((&eviction.operation, eviction.revision), (&Operation::Delete, 2));
    assert!(!requests.iter().any(|request| request.key == Key::Shard(Shard(0))), "it waits: {requests:?}");
    member.handle_answer(eviction, Answer::Stored(9), now);
    let [claim] = &sent(&mut member)[..] else { panic!("it claims") };
    assert_eq!(
        (&claim.key, &claim.operation, claim.revision),
        (&Key::Shard(Shard(0)), &Operation::Put("me".into()), 3)
    );
}

#[test]
fn a_renewal_whose_confirmation_was_lost_counts_only_after_the_next() {
    let now = Instant::now();
    let mut member = Membership::new("me".to_owned(), "label".to_owned(), SHARDS, now);
    let Some(Action::Send(join)) = member.poll_action() else { panic!("it joins") };
    let own = Found { value: Some("label".to_owned()), revision: 7 };
    member.handle_answer(join, Answer::Conflict(Some(own)), now);
    assert_eq!(member.until(), now, "when it was sent is not known");
    let Some(Action::Send(again)) = member.poll_action() else { panic!("it renews") };
    assert_eq!((&again.key, again.revision), (&Key::Member("me".into()), 7));
    member.handle_answer(again, Answer::Stored(8), now + CHECK);
    assert_eq!(member.until(), now + LEASE - MARGIN, "counted from when it was sent");
}

#[test]
fn after_a_request_without_an_answer_nothing_new_is_sent_for_a_moment() {
    let mut bucket = Bucket::new();
    let first = bucket.join();
    let now = bucket.now;
    let member = &mut bucket.members[first];
    member.claims.lose(Shard(3));
    member.send(Purpose::Claim(Shard(3)), Key::Shard(Shard(3)), Operation::Delete, 0, now);
    let Some(Action::Send(request)) = member.poll_action() else { panic!("it was sent") };
    member.members.forget_owner(Shard(3));
    member.handle_answer(request, Answer::Unknown, now);
    let claims = |action| matches!(action, Action::Send(Request { key: Key::Shard(_), .. }));
    assert!(!std::iter::from_fn(|| member.poll_action()).any(claims));
    member.handle_timeout(now + CHECK);
    assert!(std::iter::from_fn(|| member.poll_action()).any(claims));
}

#[test]
fn a_member_that_stops_releases_its_shards_and_then_deletes_its_key() {
    let mut bucket = Bucket::new();
    let (first, second) = (bucket.join(), bucket.join());
    bucket.wait(Duration::from_secs(1), true);
    bucket.members[first].handle_stop(bucket.now);
    bucket.settle();
    assert_eq!(bucket.kept(first), 0);
    assert!(!bucket.members[first].is_over(), "snapshots are waited for");
    bucket.wait(Duration::from_millis(200), true);
    assert!(bucket.members[first].is_over());
    assert_eq!((bucket.kept(second), bucket.notices.len()), (16, 0), "no lease had to run out");
}

#[test]
fn a_renewal_in_flight_does_not_keep_a_member_that_leaves() {
    let now = Instant::now();
    let mut member = Membership::new("me".to_owned(), "label".to_owned(), SHARDS, now);
    let Some(Action::Send(join)) = member.poll_action() else { panic!("it joins") };
    member.handle_answer(join, Answer::Stored(1), now);
    assert_eq!(member.poll_action(), Some(Action::Publish));
    member.handle_timeout(now + RENEWAL);
    let Some(Action::Send(renewal)) = member.poll_action() else { panic!("it renews") };
    member.handle_stop(now + RENEWAL);
    assert_eq!(member.poll_action(), Some(Action::Publish));
    let Some(Action::Send(deletion)) = member.poll_action() else { panic!("it deletes its key") };
    member.handle_answer(renewal, Answer::Stored(2), now + RENEWAL);
    assert_eq!(member.until(), now + RENEWAL, "it does not act again");
    let found = Found { value: Some("label".to_owned()), revision: 2 };
    member.handle_answer(deletion, Answer::Conflict(Some(found)), now + RENEWAL);
    let Some(Action::Send(deletion)) = member.poll_action() else { panic!("it deletes its key") };
    assert_eq!((&deletion.operation, deletion.revision), (&Operation::Delete, 2));
    member.handle_answer(deletion, Answer::Stored(3), now + RENEWAL);
    assert!(member.is_over());
}

#[test]
fn a_member_that_is_evicted_while_it_leaves_does_not_join_again() {
    let mut bucket = Bucket::new();
    let first = bucket.join();
    let id = bucket.members[first].id.clone();
    bucket.members[first].handle_stop(bucket.now);
    bucket.settle();
    let deleted = Change { key: Key::Member(id), value: None, revision: 99, age: Duration::ZERO };
    bucket.members[first].handle_change(deleted, bucket.now);
    let joins = |action| matches!(action, Action::Send(Request { purpose: Purpose::Renew, .. }));
    assert!(!std::iter::from_fn(|| bucket.members[first].poll_action()).any(joins));
    assert!(bucket.members[first].is_over() && bucket.members[first].claims().claimed().is_empty());
}

#[test]
fn the_tombstone_of_a_member_that_left_long_ago_is_purged() {
    let mut bucket = Bucket::new();
    let first = bucket.join();
    for (age, is_purged) in [(TOMBSTONE - CHECK, false), (TOMBSTONE, true)] {
        let change = Change { key: Key::Member("old".to_owned()), value: None, revision: 90, age };
        bucket.members[first].handle_change(change, bucket.now);
        let purges = |action| matches!(action, Action::Send(Request { operation: Operation::Purge, .. }));
        assert_eq!(std::iter::from_fn(|| bucket.members[first].poll_action()).any(purges), is_purged);
    }
}

#[test]
fn shards_that_are_added_are_shared_by_members_that_learn_of_them_one_after_the_other() {
    let mut bucket = Bucket::new();
    let (first, second) = (bucket.join(), bucket.join());
    bucket.wait(Duration::from_secs(1), true);
    let now = bucket.now;
    bucket.members[first].handle_shards(32, now);
    bucket.settle();
    assert_eq!((bucket.kept(first), bucket.kept(second)), (16, 8), "the second one knows of half of them");
    bucket.members[second].handle_shards(32, now);
    bucket.wait(Duration::from_secs(1), true);
    assert_eq!((bucket.kept(first), bucket.kept(second)), (16, 16));
    let both = bucket.members[first].claims().claimed().union(bucket.members[second].claims().claimed());
    assert_eq!(both.len(), 32, "no shard has two owners");
    // One that joins knows all from the beginning, and one that is told again changes nothing.
    bucket.members[first].handle_shards(16, bucket.now);
    assert_eq!(bucket.members[first].shards(), 32);
    bucket.crash(second);
    bucket.wait(LEASE * 3, true);
    assert_eq!(bucket.kept(first), 32);
}

#[test]
fn a_shard_that_is_claimed_while_the_member_stops_is_released_too() {
    let mut bucket = Bucket::new();
    let only = bucket.join();
    // It claims the shards of another partition, and is stopped before the broker answers.
    let now = bucket.now;
    bucket.members[only].handle_shards(2 * SHARDS, now);
    bucket.members[only].handle_stop(now);
    bucket.wait(Duration::from_millis(500), true);
    assert!(bucket.members[only].is_over(), "it waits for shards that nobody releases");
    let is_owned = |(key, (value, _)): (&Key, &(Option<String>, u64))| {
        matches!(key, Key::Shard(_)) && value.as_ref().is_some_and(|owner| !owner.is_empty())
    };
    assert_eq!(bucket.keys.iter().filter(|entry| is_owned(*entry)).count(), 0);
}

#[test]
fn runs_are_carried_only_while_the_releases_of_all_members_know_of_it() {
    let mut bucket = Bucket::new();
    let first = bucket.join();
    assert!(bucket.members[first].all_carry());
    let older = bucket.join_as("127.0.0.1:80 0.9");
    assert!(!bucket.members[first].all_carry());
    let second = bucket.join();
    assert!(!bucket.members[second].all_carry(), "it is there when the watch begins");
    bucket.crash(older);
    bucket.wait(2 * LEASE, true);
    assert!(bucket.members[first].all_carry() && bucket.members[second].all_carry());
}
