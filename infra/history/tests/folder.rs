//! Against the store that `dev` uses, a folder: what is written is read by others, and stays after the writer died.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use proto::convert::history::{HistoryMessage, HistoryPosition};
use run::{RunId, Shard, TenantId, Timestamp};
use toolyard_history::{EndedRun, History, HistoryError, HistoryLocation};

const LOG: u64 = 7;
static NOW: LazyLock<Timestamp> = LazyLock::new(|| id().created_at());
const SHARD: Shard = Shard(3);
const CLAIM: u64 = 1;

fn history(folder: &Path) -> History {
    let location = HistoryLocation::Folder(folder.to_owned());
    History::new(&location, Duration::from_secs(3600)).expect("a folder")
}

fn id() -> RunId {
    RunId::new(SHARD, uuid::Uuid::now_v7())
}

fn messages(sequences: &[u64]) -> Vec<HistoryMessage> {
    let of = |sequence: &u64| {
        let payload = Bytes::from(format!("entry {sequence}"));
        HistoryMessage { place: "0.out.main".to_owned(), sequence: *sequence, at: *NOW, payload }
    };
    sequences.iter().map(of).collect()
}

fn ended(id: RunId, tenant: Option<&str>, sequences: &[u64]) -> EndedRun {
    let tenant = tenant.map(|tenant| tenant.parse().expect("a tenant"));
    let last = sequences.last().copied().unwrap_or(0);
    EndedRun { id, tenant, ended_at: *NOW, last, messages: messages(sequences), parts: 0 }
}

fn at(through: u64) -> HistoryPosition {
    HistoryPosition { log: LOG, through }
}

#[tokio::test]
async fn a_run_is_read_as_it_was_written_by_its_writer_by_others_and_by_the_next_writer() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, reader, run) = (history(folder.path()), history(folder.path()), id());
    assert_eq!(reader.run(run, *NOW).await.expect("there is nothing yet"), None);
    assert_eq!(writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens"), 0);
    writer.put(SHARD, vec![ended(run, None, &[5, 9])], at(9)).await.expect("stored");
    for of in [&writer, &reader] {
        let found = of.run(run, *NOW).await.expect("it is there").expect("it has the run");
        assert_eq!((found.messages, found.parts), (messages(&[5, 9]), 0));
        assert_eq!(of.run(id(), *NOW).await.expect("it is there"), None);
    }
    // As if the process was killed: the first writer is not closed.
    let next = history(folder.path());
    assert_eq!(next.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens"), 9);
    assert!(next.run(run, *NOW).await.expect("it is there").is_some());
    assert_eq!(
        next.begin((SHARD, CLAIM), LOG + 1, u64::MAX).await.expect("it is open"),
        0,
        "of another log nothing is written yet"
    );
    let restored = next.begin((SHARD, CLAIM), LOG, 8).await.expect("it is open");
    assert_eq!(restored, 0, "the log was restored from a copy that ends before the position");
}

#[tokio::test]
async fn a_writer_whose_shard_was_taken_over_writes_nothing_any_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (history(folder.path()), history(folder.path()));
    first.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    first.put(SHARD, vec![ended(id(), None, &[1])], at(1)).await.expect("stored");
    assert_eq!(second.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens"), 1);
    let late = id();
    let refused = first.put(SHARD, vec![ended(late, None, &[2])], at(2)).await;
    assert!(matches!(refused, Err(HistoryError::Fenced)), "{refused:?}");
    assert_eq!((first.through(SHARD), second.through(SHARD)), (None, Some(1)));
    second.put(SHARD, vec![ended(id(), None, &[3])], at(3)).await.expect("stored");
    for of in [&first, &second, &history(folder.path())] {
        assert_eq!(of.run(late, *NOW).await.expect("it is there"), None);
    }
}

#[tokio::test]
async fn a_run_is_found_once_it_is_durable_by_a_writer_that_does_not_know_it_was_fenced_and_by_a_new_reader() {
    let folder = tempfile::tempdir().expect("a folder");
    let (fenced, writer, reader) = (history(folder.path()), history(folder.path()), history(folder.path()));
    let acme: TenantId = "acme".parse().expect("a tenant");
    fenced.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    fenced.put(SHARD, vec![ended(id(), None, &[1])], at(1)).await.expect("stored");
    assert_eq!(writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens"), 1);
    for last in 2..5 {
        let run = id();
        // Both have a reader that does not know the run.
        for of in [&fenced, &reader] {
            assert_eq!(of.run(run, *NOW).await.expect("it is there"), None);
        }
        writer.put(SHARD, vec![ended(run, Some("acme"), &[last])], at(last)).await.expect("stored");
        for of in [&fenced, &reader] {
            let found = of.run(run, *NOW).await.expect("it is there");
            assert_eq!(found.expect("it is durable").messages, messages(&[last]));
            let listed = of.runs_of(SHARD, &acme, None, 10).await.expect("it is there");
            assert!(listed.contains(&run), "{run} is not in {listed:?}");
        }
    }
}

#[tokio::test]
async fn a_large_run_has_parts_and_none_of_them_is_shown_without_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, reader, run) = (history(folder.path()), history(folder.path()), id());
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    writer.put_part(run, 1, messages(&[1, 2]), *NOW).await.expect("stored");
    writer.put_part(run, 2, messages(&[3]), *NOW).await.expect("stored");
    assert_eq!(writer.run(run, *NOW).await.expect("it is there"), None);
    let large = EndedRun { parts: 2, messages: Vec::new(), ..ended(run, Some("acme"), &[3]) };
    writer.put(SHARD, vec![large], at(3)).await.expect("stored");
    let found = reader.run(run, *NOW).await.expect("it is there").expect("it has the run");
    assert_eq!((found.parts, found.messages.len()), (2, 0));
    assert_eq!(reader.part(run, 1).await.expect("it is there"), messages(&[1, 2]));
    assert_eq!(reader.part(run, 2).await.expect("it is there"), messages(&[3]));
    writer.erase(run, 3, CLAIM).await.expect("erased");
    assert_eq!(writer.run(run, *NOW).await.expect("it is there"), None);
    assert!(matches!(writer.part(run, 1).await, Err(HistoryError::Damaged(_))), "its parts are erased too");
}

#[tokio::test]
async fn a_run_that_is_erased_before_it_is_written_does_not_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, run, other) = (history(folder.path()), id(), id());
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    // Its entries up to 8 were read from the log before they were erased there, and are written afterwards.
    writer.erase(run, 8, CLAIM).await.expect("there is nothing yet");
    writer.put(SHARD, vec![ended(run, None, &[2, 8]), ended(other, None, &[3])], at(8)).await.expect("stored");
    assert_eq!(writer.run(run, *NOW).await.expect("it is there"), None);
    assert!(writer.run(other, *NOW).await.expect("it is there").is_some());
    // The same request may open the run again.
    writer.put(SHARD, vec![ended(run, None, &[10, 12])], at(12)).await.expect("stored");
    assert!(writer.run(run, *NOW).await.expect("it is there").is_some());
    // A coordinator that does not write the shard does not report what it cannot do.
    assert!(matches!(history(folder.path()).erase(run, 12, CLAIM).await, Err(HistoryError::NotOpen)));
}

#[tokio::test]
async fn the_owner_does_not_find_an_erased_run_with_a_reader_that_it_opened_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, next, run) = (history(folder.path()), history(folder.path()), id());
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    writer.put(SHARD, vec![ended(run, None, &[1])], at(1)).await.expect("stored");
    // It reads the run before it owns the shard.
    assert!(next.run_cached(run, *NOW).await.expect("it is there").is_some());
    next.begin((SHARD, CLAIM + 1), LOG, u64::MAX).await.expect("it opens");
    next.erase(run, 1, CLAIM + 1).await.expect("erased");
    assert_eq!(next.run_cached(run, *NOW).await.expect("it is there"), None);
    assert_eq!(next.run(run, *NOW).await.expect("it is there"), None);
}

#[tokio::test]
async fn a_run_that_is_erased_does_not_come_back_if_the_write_that_left_it_out_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let (place, aside) = (folder.path().join("here"), folder.path().join("aside"));
    let (writer, run) = (history(&place), id());
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    writer.erase(run, 8, CLAIM).await.expect("there is nothing yet");
    std::fs::rename(&place, &aside).expect("moved");
    std::fs::write(&place, b"").expect("a file in its place");
    let lost = writer.put(SHARD, vec![ended(run, None, &[2, 8])], at(8));
    assert!(matches!(tokio::time::timeout(Duration::from_secs(1), lost).await, Err(_) | Ok(Err(_))));
    std::fs::remove_file(&place).expect("removed");
    std::fs::rename(&aside, &place).expect("moved back");
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    writer.put(SHARD, vec![ended(run, None, &[2, 8])], at(8)).await.expect("stored");
    assert_eq!(writer.run(run, *NOW).await.expect("it is there"), None);
}

#[tokio::test]
async fn parts_of_a_run_that_is_erased_before_it_is_written_do_not_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, run) = (history(folder.path()), id());
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    writer.put_part(run, 1, messages(&[1, 2]), *NOW).await.expect("stored");
    // The attempt to write its shard fails, and the run is erased before the next one.
    writer.erase(run, 8, CLAIM).await.expect("erased");
    writer.part(run, 1).await.expect_err("it is erased with the run");
    // An attempt that has read the run before writes another part.
    writer.put_part(run, 2, messages(&[3]), *NOW).await.expect("stored");
    writer.put(SHARD, Vec::new(), at(8)).await.expect("stored");
    writer.part(run, 2).await.expect_err("the run did not come");
}

#[tokio::test]
async fn a_writer_that_lost_its_shard_and_got_it_back_erases_what_was_written_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, other, run) = (history(folder.path()), history(folder.path()), id());
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    other.begin((SHARD, CLAIM + 1), LOG, u64::MAX).await.expect("it opens");
    other.put(SHARD, vec![ended(run, None, &[1])], at(1)).await.expect("stored");
    let again = CLAIM + 2;
    let refused = writer.erase(run, 1, again).await;
    assert!(matches!(refused, Err(HistoryError::NotOpen)), "its database is of the earlier claim: {refused:?}");
    assert_eq!(writer.begin((SHARD, again), LOG, u64::MAX).await.expect("it opens"), 1);
    writer.erase(run, 1, again).await.expect("erased");
    assert_eq!(history(folder.path()).run(run, *NOW).await.expect("it is there"), None);
}

#[tokio::test]
async fn small_writes_are_merged_so_that_a_reader_that_is_opened_has_few_files_to_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let writer = history(folder.path());
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    let merged = folder.path().join("history/shards/03/compacted");
    for last in 1..=64 {
        assert!(!merged.exists(), "nothing is merged before {last} writes");
        writer.put(SHARD, vec![ended(id(), None, &[last])], at(last)).await.expect("stored");
    }
    assert_eq!(merged.read_dir().expect("there is a file").count(), 1);
}

#[tokio::test]
async fn the_runs_of_a_tenant_are_found_page_by_page_and_a_run_that_expired_is_not_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let writer = history(folder.path());
    let ids: Vec<RunId> = (0..3).map(|_| id()).collect();
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    let runs = ids.iter().map(|id| ended(*id, Some("acme"), &[1])).chain([ended(id(), Some("acme-2"), &[2])]);
    writer.put(SHARD, runs.collect(), at(2)).await.expect("stored");
    let acme: TenantId = "acme".parse().expect("a tenant");
    for of in [&writer, &history(folder.path())] {
        let first = of.runs_of(SHARD, &acme, None, 2).await.expect("it is there");
        assert_eq!(first, ids[..2]);
        let rest = of.runs_of(SHARD, &acme, Some(ids[1]), 2).await.expect("it is there");
        assert_eq!(rest, ids[2..]);
        assert_eq!(of.runs_of(Shard(4), &acme, None, 2).await.expect("it is there"), []);
    }
    let later = NOW.after(Duration::from_secs(3601));
    assert_eq!(writer.run(ids[0], later).await.expect("it is there"), None);
}

#[tokio::test]
async fn a_folder_that_is_away_is_reported_and_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let (place, aside) = (folder.path().join("here"), folder.path().join("aside"));
    let (writer, run) = (history(&place), id());
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    writer.put(SHARD, vec![ended(run, None, &[1])], at(1)).await.expect("stored");
    writer.end(SHARD).await;
    std::fs::rename(&place, &aside).expect("moved");
    std::fs::write(&place, b"").expect("a file in its place");
    let (away, reader) = (writer.begin((SHARD, CLAIM), LOG, u64::MAX), history(&aside));
    assert!(matches!(tokio::time::timeout(Duration::from_secs(2), away).await, Err(_) | Ok(Err(_))));
    assert!(reader.run(run, *NOW).await.expect("it is there").is_some());
    std::fs::remove_file(&place).expect("removed");
    std::fs::rename(&aside, &place).expect("moved back");
    assert_eq!(writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens"), 1);
    assert!(writer.run(run, *NOW).await.expect("it is there").is_some());
}

#[tokio::test]
async fn objects_are_beside_the_runs_and_go_with_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (writer, run) = (history(folder.path()), id());
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    writer.put_object(run, "0.x.0", Bytes::from_static(b"piece")).await.expect("stored");
    assert_eq!(writer.object(run, "0.x.0", 1..3).await.expect("it is there"), Some(Bytes::from_static(b"ie")));
    assert_eq!(writer.object(run, "0.x.1", 0..3).await.expect("it is there"), None);
    writer.remove_expired_objects(run.created_at().after(Duration::from_secs(3600))).await.expect("removed");
    assert!(writer.object(run, "0.x.0", 1..3).await.expect("it is there").is_some(), "it is young");
    let days = |days: u32| run.created_at().after(days * Duration::from_secs(86_400));
    writer.remove_expired_objects(days(30)).await.expect("removed");
    assert!(writer.object(run, "0.x.0", 1..3).await.expect("it is there").is_some(), "it may just have ended");
    let all_days = folder.path().join("history/objects");
    let day_folders = || std::fs::read_dir(&all_days).map_or(0, Iterator::count);
    assert_eq!(day_folders(), 1);
    writer.remove_expired_objects(days(35)).await.expect("removed");
    assert_eq!(writer.object(run, "0.x.0", 1..3).await.expect("it is there"), None);
    assert_eq!(day_folders(), 0, "nothing is listed again and again");
    writer.put_object(run, "0.x.0", Bytes::from_static(b"piece")).await.expect("stored");
    writer.put(SHARD, vec![ended(run, None, &[1])], at(1)).await.expect("stored");
    writer.erase(run, 1, CLAIM).await.expect("erased");
    assert_eq!(writer.object(run, "0.x.0", 1..3).await.expect("it is there"), None);
}

#[tokio::test]
async fn an_erasure_whose_objects_could_not_be_removed_is_not_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let (objects, aside) = (folder.path().join("history/objects"), folder.path().join("aside"));
    let (writer, run) = (history(folder.path()), id());
    writer.begin((SHARD, CLAIM), LOG, u64::MAX).await.expect("it opens");
    writer.put_object(run, "0.x.0", Bytes::from_static(b"piece")).await.expect("stored");
    writer.put(SHARD, vec![ended(run, None, &[1])], at(1)).await.expect("stored");
    std::fs::rename(&objects, &aside).expect("moved");
    std::fs::write(&objects, b"").expect("a file in their place");
    writer.erase(run, 1, CLAIM).await.expect_err("its objects cannot be listed");
    std::fs::remove_file(&objects).expect("removed");
    std::fs::rename(&aside, &objects).expect("moved back");
    writer.erase(run, 1, CLAIM).await.expect("erased");
    assert_eq!(writer.object(run, "0.x.0", 1..3).await.expect("it is there"), None);
    assert_eq!(writer.run(run, *NOW).await.expect("it is there"), None);
}
