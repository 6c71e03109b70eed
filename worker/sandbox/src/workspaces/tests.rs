//! The folders of calls, runs and tenants come and go as they should.

use super::*;

fn workspaces(root: &Path, sharing: Sharing) -> Workspaces {
    let quota = Quota { bytes: 64 * 1024, files: 20 };
    Workspaces::removing_after(Duration::ZERO, root, sharing, quota, None).unwrap()
}

fn of(tenant: Option<&str>) -> Requester {
    Requester { tenant: tenant.map(|tenant| tenant.parse().unwrap()), ..Requester::default() }
}

fn open(workspaces: &Workspaces, run: &str) -> Workspace {
    workspaces.open_of(run, None, Left::default()).unwrap()
}

#[tokio::test]
async fn each_call_has_a_folder_that_goes_with_it() {
    let root = tempfile::tempdir().unwrap();
    let (workspaces, left) = (workspaces(root.path(), Sharing::Call), Left::default());
    let first = workspaces.open_of("a", None, left.clone()).unwrap();
    let second = workspaces.open_of("a", None, left.clone()).unwrap();
    assert_ne!(first.folder(), second.folder());
    let folder = first.folder().to_owned();
    fs::create_dir_all(folder.join("closed/inside")).unwrap();
    fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    drop(first);
    left.gone().await;
    assert!(!folder.exists() && second.folder().exists());
}

#[tokio::test]
async fn the_calls_of_a_run_share_a_folder_until_it_is_idle() {
    let root = tempfile::tempdir().unwrap();
    let workspaces = workspaces(root.path(), Sharing::Run);
    let (first, second) = (open(&workspaces, "a/../b"), open(&workspaces, "a/../b"));
    let other = open(&workspaces, "c");
    assert_eq!(first.folder(), second.folder());
    assert_ne!(first.folder(), other.folder());
    assert_eq!(first.folder().parent(), other.folder().parent());
    let folder = first.folder().to_owned();
    drop(first);
    workspaces.inner.sweep();
    assert!(folder.exists());
    drop(second);
    workspaces.inner.sweep();
    assert!(!folder.exists() && other.folder().exists());
}

#[tokio::test(start_paused = true)]
async fn the_folder_of_a_run_goes_after_its_time_though_no_call_follows_and_one_task_sees_to_all() {
    let root = tempfile::tempdir().unwrap();
    let (hour, quota) = (Duration::from_secs(3600), Quota::default());
    let workspaces = Workspaces::removing_after(hour, root.path(), Sharing::Run, quota, None).unwrap();
    let folders: Vec<_> = ["a", "b", "c"].map(|run| open(&workspaces, run).folder().to_owned()).into();
    assert_eq!(Arc::weak_count(&workspaces.inner), 1, "the task");
    sleep(hour / 2).await;
    drop(open(&workspaces, "c"));
    sleep(hour * 3 / 4).await;
    assert_eq!(folders.iter().map(|folder| folder.exists()).collect::<Vec<_>>(), [false, false, true]);
    sleep(hour).await;
    assert!(!folders[2].exists() && Arc::weak_count(&workspaces.inner) == 0, "it ends with the last folder");
    drop(open(&workspaces, "a"));
    sleep(hour * 2).await;
    assert_eq!(fs::read_dir(&workspaces.inner.own.folder).unwrap().count(), 0);
}

#[tokio::test]
async fn each_tenant_has_a_folder_that_stays_and_an_unknown_one_has_none() {
    let root = tempfile::tempdir().unwrap();
    let workspaces = workspaces(root.path(), Sharing::Tenant);
    let folder = |requester: &Requester| {
        let opened = workspaces.open_of("a", Some(requester), Left::default()).unwrap();
        assert!(opened.folder().is_dir());
        opened.folder().to_owned()
    };
    let (acme, rival, nobody) = (folder(&of(Some("acme"))), folder(&of(Some("rival"))), folder(&of(None)));
    assert_eq!(acme, folder(&of(Some("acme"))));
    assert!(acme.is_dir() && acme != rival && acme != nobody && rival != nobody);
    let unknown = workspaces.open_of("a", None, Left::default()).unwrap_err();
    assert!(matches!(unknown, WorkspaceError::NoRequester));
    fs::remove_dir(&rival).unwrap();
    std::os::unix::fs::symlink(&acme, &rival).unwrap();
    let link = workspaces.open_of("a", Some(&of(Some("rival"))), Left::default());
    assert!(matches!(link, Err(WorkspaceError::Make { .. })), "a link leads to another tenant");
}

#[tokio::test]
async fn a_folder_that_holds_too_much_is_noticed() {
    let root = tempfile::tempdir().unwrap();
    let workspaces = workspaces(root.path(), Sharing::Call);
    let large = open(&workspaces, "a");
    assert_eq!(large.check().await, Ok(()));
    fs::write(large.folder().join("large"), vec![1; 128 * 1024]).unwrap();
    assert!(large.exceeded().await.to_string().contains("of this call holds"));
    let many = open(&workspaces, "a");
    for number in 0..21 {
        fs::write(many.folder().join(number.to_string()), "").unwrap();
    }
    let error = many.exceeded().await.to_string();
    assert!(error.contains("21 files or more, at most 20 files"), "{error}");
}

#[tokio::test]
async fn what_killed_workers_left_is_removed_and_what_living_ones_have_stays() {
    let root = tempfile::tempdir().unwrap();
    let living = workspaces(root.path(), Sharing::Run);
    let used = open(&living, "a");
    for name in ["worker-dead", "tenant-acme", "other"] {
        fs::create_dir_all(root.path().join(name).join("call-1")).unwrap();
    }
    let next = workspaces(root.path(), Sharing::Call);
    let exists = |name: &str| root.path().join(name).exists();
    assert!(!exists("worker-dead") && exists("tenant-acme") && exists("other"));
    assert!(used.folder().is_dir() && open(&next, "a").folder().is_dir());
    let own = next.inner.own.folder.clone();
    drop(next);
    assert!(!own.exists(), "a worker that ends leaves nothing");
}
