//! Writes runs that have ended to the history: for each shard that is ours, part by part in the order of the log.
//!
//! The position up to which the runs of a shard are stored is in the history itself, and is written together with them.
//! So the next owner goes on from there. Runs that are written twice have the same content. A run is written when it is
//! not open any more, and again after an entry that came later.

mod prepare;
mod shards;
mod unprepared;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::history::{EndedRun, History, HistoryError};
use futures::future::{BoxFuture, join_all};
use futures::stream::{FuturesUnordered, iter};
use futures::{FutureExt as _, StreamExt as _};
use owner::SHARDS_MAX;
use owner::stuck::Stuck;
use proto::convert::history::HistoryPosition;
use run::{RunId, Shard};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use self::shards::Shards;
use self::unprepared::Unprepared;
use crate::metrics::COUNTS;
use crate::nats::journal::{Journals, OfRun, OfShard, ReadError, Unfinished, Wanted};
use crate::objects::{BrokenObject, Results};
use crate::owner::{OpenAmong, OwnerHandle, Stopped};
use crate::shards::{Owned, every};

/// How often shards are written whose histories have everything. Each time it is one file for each shard in which runs
/// ended.
const ROUND: Duration = Duration::from_secs(5);
/// How often the owner is asked whether it has taken a shard over.
const TAKEN_OVER: Duration = Duration::from_millis(250);

/// Bytes of messages of ended runs that are written together.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Shards that are read together are written at once with so many others. Each of these groups may have some 16 MiB of
/// its log in memory.
const GROUPS_AT_ONCE: usize = 4;
/// The same of shards that are read by themselves, with 4 MiB each.
const ALONE_AT_ONCE: usize = 8;
/// What was read of a part is written at least this often: a shard may be lost at any moment, and its next owner begins
/// behind that.
const PUT_APART: Duration = Duration::from_secs(2);
/// Shards that are written at once. Each may have a batch in memory.
const SHARDS_AT_ONCE: usize = 16;
/// Runs that are read at once because they began before what was read of their shard: all together, and of one shard.
const RUNS_AT_ONCE: usize = 16;
const RUNS_OF_SHARD: usize = 8;
/// A shard that is ready to be read so much later than another one, because its history is opened or a part of it is
/// written slowly, is not read together with it.
const READY_SOON: Duration = Duration::from_secs(2);
/// So many shards of a partition, or more, are read together, with everything between them: it costs the broker less
/// than reading each by itself, although it sends what is passed over.
const TOGETHER_MIN: usize = 4;
/// Shards whose histories go equally far but for so many entries are read together: twice as many as one read has. One
/// that is further behind would keep the others waiting.
const TOGETHER_WITHIN: u64 = 16_384;
/// So many entries before the position of a history are read again by a new owner, for the beginnings of runs that go
/// on there: each would be read alone otherwise. It is some seconds to a minute of a busy log.
const LOOK_BACK: u64 = 32_768;
/// A shard whose runs were not all written for so long is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(300);
/// How often objects of runs that are kept no more are removed, by the owner of the first shard.
const EXPIRE: Duration = Duration::from_secs(3600);
const FIRST: Shard = Shard(0);

pub(crate) struct HistoryWriter {
    history: History,
    journals: Journals,
    /// The objects of runs, which are copied.
    results: Results,
    owner: OwnerHandle,
    owned: watch::Receiver<Owned>,
    stuck: Mutex<Stuck>,
    /// The runs of each shard that go on after what was written last, and the log to which they belong.
    unfinished: Mutex<HashMap<Shard, (u64, Unfinished)>>,
    room: Room,
}

/// What may be in memory at once.
#[derive(Debug)]
struct Room {
    groups: Semaphore,
    alone: Semaphore,
    shards: Semaphore,
    runs: Semaphore,
}

impl Default for Room {
    fn default() -> Self {
        let [groups, alone, shards, runs] =
            [GROUPS_AT_ONCE, ALONE_AT_ONCE, SHARDS_AT_ONCE, RUNS_AT_ONCE].map(Semaphore::new);
        Self { groups, alone, shards, runs }
    }
}

/// A shard whose history is being written.
#[derive(Debug, Clone, Copy)]
struct Writing {
    /// The log to which the positions belong.
    log: u64,
    /// What is read next. Up to `written` only for the runs that go on there.
    wanted: Wanted,
    /// The history goes as far as this.
    written: u64,
}

impl Writing {
    fn is_complete(&self) -> bool {
        self.written >= self.wanted.needed
    }

    /// The next part ends where the history does, if it begins before.
    fn next(&self) -> Wanted {
        let Wanted { after, needed, .. } = self.wanted;
        Wanted { needed: if after < self.written { self.written } else { needed }, ..self.wanted }
    }
}

/// A shard, and how far its history goes; `None` if the shard is not ours, or is taken over again.
type Begun = (Shard, Result<Option<Writing>, WriteError>);
/// A shard, and whether everything of it is written.
type Written = (Shard, Result<bool, WriteError>);

/// What was done for shards.
enum Step<'a> {
    /// They are open, or a part of each is written.
    Done(Vec<Begun>),
    /// A part of each was read. The room is kept until the parts are written, or until the next ones are read.
    Read(Vec<(Writing, OfShard)>, Option<SemaphorePermit<'a>>),
}

/// The shards that are read together, and those that are read alone.
fn in_groups(writing: Vec<Writing>) -> Vec<Vec<Writing>> {
    let furthest = writing.iter().map(|writing| writing.wanted.after).max().unwrap_or(0);
    let is_near = |writing: &Writing| writing.wanted.after + TOGETHER_WITHIN >= furthest;
    let (near, far): (Vec<Writing>, Vec<Writing>) = writing.into_iter().partition(is_near);
    let alone = |writing: Writing| vec![writing];
    if near.len() < TOGETHER_MIN {
        return near.into_iter().chain(far).map(alone).collect();
    }
    std::iter::once(near).chain(far.into_iter().map(alone)).collect()
}

#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    History(#[from] HistoryError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Object(#[from] BrokenObject),
    #[error(transparent)]
    Stopped(#[from] Stopped),
    #[error("run {0} has ended according to its owner, but not according to the log")]
    NotEnded(RunId),
    #[error("entries of run {0} left the log while they were written")]
    Left(RunId),
}

impl HistoryWriter {
    pub(crate) fn new(
        (history, journals, results): (History, Journals, Results),
        owner: OwnerHandle,
        owned: watch::Receiver<Owned>,
    ) -> Self {
        let (stuck, unfinished) = (Mutex::default(), Mutex::default());
        Self { history, journals, results, owner, owned, stuck, unfinished, room: Room::default() }
    }

    pub(crate) async fn keep(self, stop: CancellationToken) {
        let mut round = tokio::time::interval(ROUND);
        round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut shards, mut expired_at): (_, Option<Instant>) = (Shards::default(), None);
        // Each shard that is being written is reported once.
        let (done, mut written) = mpsc::channel(SHARDS_MAX);
        let (mut writes, mut owned) = (FuturesUnordered::new(), self.owned.clone());
        // At most one, which may take minutes.
        let mut removals = FuturesUnordered::new();
        loop {
            // Cut off, a write is harmless: the next owner goes on from what was written.
            let is_round = tokio::select! {
                () = stop.cancelled() => break,
                _ = round.tick() => true,
                Ok(()) = owned.changed() => false,
                Some(()) = writes.next() => continue,
                Some(()) = removals.next() => continue,
                Some(one) = written.recv() => {
                    shards.handle_written(one);
                    false
                }
            };
            let is_due = removals.is_empty() && expired_at.is_none_or(|at| at.elapsed() >= EXPIRE);
            if is_round && is_due && self.owned.borrow().holds(FIRST) {
                expired_at = Some(Instant::now());
                removals.push(self.remove_expired());
            }
            if is_round {
                self.tell(&mut shards);
            }
            let ours = *owned.borrow_and_update();
            let (due, lost) = shards.look(|shard| ours.holds(shard), is_round);
            join_all(lost.into_iter().map(|shard| self.end(shard))).await;
            for shards in due.chunk_by(|one, next| one.partition() == next.partition()) {
                writes.push(self.write(shards.to_vec(), &done));
            }
        }
        drop((writes, removals));
        join_all(every().map(|shard| self.history.end(shard))).await;
    }

    async fn remove_expired(&self) {
        if let Err(error) = self.history.remove_expired_objects(::nats::now()).await {
            tracing::warn!(%error, "removing expired objects from the history failed, trying again later");
        }
    }

    /// Forgets a shard that is not ours any more.
    async fn end(&self, shard: Shard) {
        self.unfinished().remove(&shard);
        self.stuck().handle_lost(shard);
        self.history.end(shard).await;
    }

    /// Tells what is late, and what failed since the last round.
    fn tell(&self, shards: &mut Shards) {
        let stuck = shards.late().filter(|late| *late >= STUCK_AFTER).count();
        COUNTS.history_behind.set(shards.late().max().unwrap_or_default().as_secs_f64());
        COUNTS.history_stuck.set(f64::from(u32::try_from(stuck).unwrap_or(u32::MAX)));
        let failed = std::mem::take(&mut shards.failed);
        if let Some((_, error)) = failed.last() {
            let shards: Vec<String> = failed.iter().map(|(shard, _)| shard.to_string()).collect();
            COUNTS.history_failed.add(shards.len() as u64);
            tracing::warn!(
                %error, shards = shards.join(","), place = self.history.place(),
                "writing runs that have ended to the history failed, trying again; they stay in the log meanwhile. If \
                this does not end and other shards are written, a file is damaged (docs/howto/runbook.md)"
            );
        }
    }

    fn stuck(&self) -> MutexGuard<'_, Stuck> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unfinished(&self) -> MutexGuard<'_, HashMap<Shard, (u64, Unfinished)>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether to go on without something of the shard that cannot be read.
    fn gives_up(&self, shard: Shard) -> bool {
        self.stuck().handle_failed(shard, ::nats::now())
    }

    /// Writes what has ended in shards of a partition, part by part, until they have what was stored when this began.
    /// Reports each when it is done. Those that are ready soon one after the other are read together.
    async fn write(&self, shards: Vec<Shard>, done: &mpsc::Sender<Written>) {
        let begin = |shard: Shard| async move { (0, Step::Done(vec![(shard, self.begin(shard).await)])) }.boxed();
        let mut steps: FuturesUnordered<BoxFuture<'_, (u64, Step<'_>)>> = shards.into_iter().map(begin).collect();
        // Steps that began since something was read last. Those that began before are late, and are not waited for.
        let (mut turn, mut of_turn) = (0, steps.len());
        let (mut ready, mut soon, mut rooms) = (Vec::new(), Instant::now(), Vec::new());
        loop {
            let next = match of_turn {
                _ if ready.is_empty() => steps.next().await,
                0 => None,
                _ => timeout_at(soon, steps.next()).await.ok().flatten(),
            };
            match next {
                Some((of, Step::Done(begun))) => {
                    of_turn -= usize::from(of == turn);
                    if ready.is_empty() {
                        soon = Instant::now() + READY_SOON;
                    }
                    ready.extend(incomplete(begun, done));
                }
                Some((of, Step::Read(parts, room))) => {
                    if of == turn {
                        of_turn = of_turn - 1 + parts.len();
                        rooms.push(room);
                    }
                    for (writing, part) in parts {
                        let write = async move {
                            let _room = self.room.shards.acquire().await;
                            (of, Step::Done(vec![(writing.wanted.shard, self.write_part(writing, part).await)]))
                        };
                        steps.push(write.boxed());
                    }
                }
                None if ready.is_empty() => return,
                None => {
                    rooms.clear();
                    let groups = in_groups(std::mem::take(&mut ready));
                    (turn, of_turn) = (turn + 1, groups.len());
                    for group in groups {
                        steps.push(self.read_parts(group).map(move |read| (turn, read)).boxed());
                    }
                }
            }
            if of_turn == 0 {
                rooms.clear();
            }
        }
    }

    /// Opens the history of a shard for writing, and finds out how far it goes. `None` if the shard is not ours.
    async fn begin(&self, shard: Shard) -> Result<Option<Writing>, WriteError> {
        let OpenAmong { newest, log, .. } = loop {
            if let Some(taken_over) = self.owner.open_among(shard, Vec::new()).await? {
                break taken_over;
            }
            if !self.owned.borrow().holds(shard) {
                return Ok(None);
            }
            tokio::time::sleep(TAKEN_OVER).await;
        };
        let Some(claim) = self.owned.borrow().claim(shard) else { return Ok(None) };
        let written = self.history.begin((shard, claim), log, newest).await?;
        let goes_on = self.unfinished().get(&shard).is_some_and(|(of, last)| *of == log && last.through() == written);
        let after = if goes_on { written } else { written.saturating_sub(LOOK_BACK) };
        Ok(Some(Writing { log, wanted: Wanted { shard, after, needed: newest }, written }))
    }

    /// Reads the next part of each of these shards.
    async fn read_parts(&self, group: Vec<Writing>) -> Step<'_> {
        let room = if group.len() > 1 { &self.room.groups } else { &self.room.alone }.acquire().await;
        let wanted: Vec<Wanted> = group.iter().map(Writing::next).collect();
        let Some(shard) = wanted.first().map(|wanted| wanted.shard) else { return Step::Done(Vec::new()) };
        match self.journals.of_shard(shard).of_shards(&wanted).await {
            Ok(parts) => Step::Read(group.into_iter().zip(parts).collect(), room.ok()),
            Err(error) => Step::Done(wanted.iter().map(|wanted| (wanted.shard, Err(error.clone().into()))).collect()),
        }
    }

    /// Writes the runs that ended in the next part of a shard. The owner has applied what is wanted: of later entries
    /// it does not know yet that they end runs. `None` if the shard is being taken over.
    async fn write_part(&self, writing: Writing, mut part: OfShard) -> Result<Option<Writing>, WriteError> {
        let Writing { log, wanted: Wanted { shard, after, .. }, written } = writing;
        if part.through == after {
            return Ok(Some(writing));
        }
        if let Some((_, unfinished)) = self.unfinished().remove(&shard).filter(|(of, _)| *of == log) {
            part.follow(unfinished, after);
        }
        let runs = part.in_order(after);
        let asked = runs.iter().map(|(_, id)| *id).chain(part.waiting()).collect();
        // Asked after the part was read, and before anything of it is written.
        let Some(OpenAmong { open, newest, .. }) = self.owner.open_among(shard, asked).await? else { return Ok(None) };
        let ended = runs.into_iter().filter(|(_, id)| !open.contains(id));
        let taken = ended.map(|(first, id)| (first, id, part.joined_at(id), part.take(id))).collect();
        let through = part.through;
        if through > written {
            self.stuck().handle_begun(shard);
            self.write_taken(shard, (log, through), taken).await?;
            self.stuck().handle_stored(shard);
        }
        self.unfinished().insert(shard, (log, part.into_unfinished(&open, newest)));
        let wanted = Wanted { after: through, ..writing.wanted };
        Ok(Some(Writing { log, wanted, written: written.max(through) }))
    }

    /// Writes runs that are not open, each with its first entry in the part, which ends with `through`: again and again
    /// what is prepared, and at the end the rest, also if there is none, because the next round begins behind the part.
    async fn write_taken(
        &self,
        shard: Shard,
        (log, through): (u64, u64),
        taken: Vec<(u64, RunId, Option<u64>, OfRun)>,
    ) -> Result<(), WriteError> {
        let mut unprepared = Unprepared::new(through, taken.iter().map(|(first, ..)| *first));
        let prepare = |(first, id, opening, taken)| {
            self.prepare_taken(id, opening, taken, through).map(move |prepared| (first, prepared)).boxed()
        };
        let mut prepared = iter(taken).map(prepare).buffer_unordered(RUNS_OF_SHARD);
        let (mut ended, mut bytes, mut put_at) = (Vec::new(), 0, Instant::now());
        loop {
            let position = HistoryPosition { log, through: unprepared.position() };
            let due = if bytes > BATCH_BYTES { put_at } else { put_at + PUT_APART };
            let next = tokio::select! {
                biased;
                () = sleep_until(due), if !ended.is_empty() => {
                    self.put(shard, std::mem::take(&mut ended), position).await?;
                    (bytes, put_at) = (0, Instant::now());
                    continue;
                }
                next = prepared.next() => next,
            };
            match next {
                Some((first, Ok(run))) => {
                    unprepared.handle_prepared(first);
                    bytes +=
                        run.iter().flat_map(|run| &run.messages).map(|message| message.payload.len()).sum::<usize>();
                    ended.extend(run);
                }
                Some((_, Err(error))) => {
                    if !ended.is_empty()
                        && let Err(error) = self.put(shard, ended, position).await
                    {
                        tracing::debug!(%shard, %error, "writing a part of what has ended failed");
                    }
                    return Err(error);
                }
                None => return self.put(shard, ended, position).await,
            }
        }
    }

    async fn put(&self, shard: Shard, ended: Vec<EndedRun>, position: HistoryPosition) -> Result<(), WriteError> {
        let runs = ended.len();
        self.history.put(shard, ended, position).await?;
        COUNTS.history_runs.add(runs as u64);
        Ok(())
    }
}

/// Reports the shards that are done, or failed, and returns the others.
fn incomplete(begun: Vec<Begun>, done: &mpsc::Sender<Written>) -> Vec<Writing> {
    let mut rest = Vec::new();
    for (shard, begun) in begun {
        match begun {
            Ok(Some(writing)) if !writing.is_complete() => rest.push(writing),
            // There is room for all shards, and the receiver lives as long as the writes.
            begun => drop(done.try_send((shard, begun.map(|writing| writing.is_some())))),
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_whose_histories_go_almost_equally_far_are_read_together_if_they_are_many() {
        let of = |shard: u8, after: u64| Writing {
            log: 1,
            wanted: Wanted { shard: Shard(shard), after, needed: 900_000 },
            written: after,
        };
        let shards = |writing: Vec<Writing>| -> Vec<Vec<u8>> {
            let number = |writing: &Writing| writing.wanted.shard.0;
            in_groups(writing).iter().map(|group| group.iter().map(number).collect()).collect()
        };
        let many: Vec<Writing> = (0..8).map(|shard| of(shard, 800_000 + u64::from(shard))).collect();
        let late = of(9, 700_000);
        assert_eq!(shards(many.iter().copied().chain([late]).collect()), [(0..8).collect(), vec![9]]);
        assert_eq!(shards(vec![many[0], late]), [[0], [9]]);
        assert!(shards(Vec::new()).is_empty());
    }

    #[test]
    fn a_new_writer_reads_what_was_written_last_again_and_then_what_follows() {
        let begun = Writing { log: 1, wanted: Wanted { shard: Shard(3), after: 100, needed: 900 }, written: 500 };
        let next = |writing: Writing| (writing.next().after, writing.next().needed, writing.is_complete());
        assert_eq!(next(begun), (100, 500, false));
        let followed = Writing { wanted: Wanted { after: 500, ..begun.wanted }, ..begun };
        assert_eq!(next(followed), (500, 900, false));
        let has_all = Writing { written: 900, ..begun };
        assert!(has_all.is_complete(), "nothing is read again if nothing is to be written");
    }
}
