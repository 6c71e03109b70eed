//! Refusals that the store of the scenarios cannot produce, because its keys may delete what they may write.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

const LISTED: &str = "<ListBucketResult><Contents><Key>ty/probe/1/0</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
    <ETag>\"1\"</ETag><Size>8</Size></Contents></ListBucketResult>";
/// A 200, as AWS gives it.
const NOT_REMOVED: &str = "<DeleteResult><Error><Key>ty/probe/1/0</Key><Code>AccessDenied</Code>\
    <Message>Access Denied (you are nobody)</Message></Error></DeleteResult>";
const DENIED: &str = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
const REMOVED: &str = "<DeleteResult><Deleted><Key>ty/probe/1/0</Key></Deleted></DeleteResult>";

/// A store whose keys lack a right: its response by the first line of a request.
async fn serve(listener: TcpListener, mut answer: impl FnMut(&str) -> (u16, &'static str)) {
    loop {
        let (mut stream, _) = listener.accept().await.expect("it listens");
        let (mut request, mut piece) = (Vec::new(), [0; 4096]);
        let whole = |request: &[u8]| {
            let text = String::from_utf8_lossy(request);
            let (head, body) = text.split_once("\r\n\r\n")?;
            let length = head.to_lowercase().split_once("content-length: ").map(|(_, rest)| rest.to_owned());
            let length = length.and_then(|rest| rest.lines().next()?.parse().ok()).unwrap_or(0);
            (body.len() >= length).then(|| head.lines().next().unwrap_or_default().to_owned())
        };
        let line = loop {
            let read = stream.read(&mut piece).await.expect("it is sent");
            request.extend_from_slice(&piece[..read]);
            if let Some(line) = whole(&request) {
                break line;
            }
            assert!(read > 0, "a request breaks off");
        };
        let (status, body) = answer(&line);
        let answer = format!(
            "HTTP/1.1 {status} Said\r\ncontent-length: {}\r\nconnection: close\r\netag: \"1\"\r\n\
             last-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await.expect("it is heard");
    }
}

async fn with_store<T>(answer: impl FnMut(&str) -> (u16, &'static str), ask: impl AsyncFnOnce(Bucket) -> T) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let place = BucketLocation::parse("s3://ours", Some(url), None, true).expect("a place");
    let bucket = Bucket::new(place, |name| name.starts_with("AWS_").then(|| "k".to_owned())).expect("a bucket");
    tokio::select! {
        () = serve(listener, answer) => unreachable!("it serves on"),
        said = ask(bucket) => said,
    }
}

/// The result of the check for a key that may write and read.
async fn checked(list: (u16, &'static str), removal: (u16, &'static str)) -> Result<(), BucketError> {
    let mut is_there = false;
    let answer = move |line: &str| match line.split(' ').next() {
        Some("PUT") if std::mem::replace(&mut is_there, true) => {
            (412, "<Error><Code>PreconditionFailed</Code></Error>")
        }
        Some("PUT") => (200, ""),
        Some("GET") if line.contains("list-type=2") => list,
        Some("GET") => (200, "toolyard"),
        _ => removal,
    };
    with_store(answer, async |bucket: Bucket| bucket.check().await).await
}

#[tokio::test]
async fn a_coordinators_key_that_cannot_remove_or_list_is_found_out() {
    checked((200, LISTED), (200, REMOVED)).await.expect("it may all");
    for (list, removal) in [((200, LISTED), (200, NOT_REMOVED)), ((403, DENIED), (200, REMOVED))] {
        let unfit = checked(list, removal).await.expect_err("it may not");
        let BucketError::Refused { what: "list and remove", reason, .. } = &unfit else { panic!("{unfit:?}") };
        assert_eq!(reason, "it says AccessDenied");
    }
}

#[tokio::test]
async fn where_there_is_no_bucket_nobody_knows_what_lies_there() {
    let no_key = |_: &str| (404, "<Error><Code>NoSuchKey</Code></Error>");
    let got = with_store(no_key, async |bucket: Bucket| bucket.get("ty.obj.a", None).await).await;
    assert_eq!(got.expect("that is an answer"), None);
    let no_bucket = |_: &str| (404, "<Error><Code>NoSuchBucket</Code></Error>");
    let got = with_store(no_bucket, async |bucket: Bucket| bucket.get("ty.obj.a", None).await).await;
    assert!(got.expect_err("it cannot be known").to_string().contains("NoSuchBucket"));
}
