//! Messages of the Language Server Protocol on a pipe: a header with the length, and JSON.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// Bytes of a line of a header.
const HEADER_BYTES_MAX: u64 = 4 * 1024;
/// Lines of a header.
const HEADER_LINES_MAX: usize = 16;
/// Bytes of a message: the symbols of a large workspace have some megabytes.
const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A message with its header.
pub(super) fn frame(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    format!("Content-Length: {}\r\n\r\n{text}", text.len()).into_bytes()
}

/// The next message; `None` when the pipe has ended between two of them.
pub(super) async fn next(pipe: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Value>> {
    let broken = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut length: Option<usize> = None;
    for number in 0..HEADER_LINES_MAX {
        let mut line = Vec::new();
        let read = (&mut *pipe).take(HEADER_BYTES_MAX).read_until(b'\n', &mut line).await?;
        if read == 0 && number == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            return Err(broken("a header is cut or too long".to_owned()));
        }
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        if line.is_empty() {
            break;
        }
        match line.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.trim().parse().ok(),
            Some(_) => {}
            None => return Err(broken(format!("it wrote {line:?}, which is no header"))),
        }
    }
    let length = length.ok_or_else(|| broken("a header has no length".to_owned()))?;
    if length > MESSAGE_BYTES_MAX {
        return Err(broken(format!("a message has {length} bytes, at most {MESSAGE_BYTES_MAX} are read")));
    }
    let mut content = vec![0; length];
    pipe.read_exact(&mut content).await?;
    serde_json::from_slice(&content).map(Some).map_err(|error| broken(format!("a message is no JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn messages_are_read_one_after_another() {
        let mut bytes = frame(&json!({ "id": 1, "text": "é" }));
        bytes.extend(b"content-length: 2\r\nContent-Type: x\r\n\r\n{}");
        let mut pipe = bytes.as_slice();
        assert_eq!(next(&mut pipe).await.unwrap(), Some(json!({ "id": 1, "text": "é" })));
        assert_eq!(next(&mut pipe).await.unwrap(), Some(json!({})));
        assert_eq!(next(&mut pipe).await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused() {
        for bytes in [
            "hello\r\n\r\n".to_owned(),
            "Content-Length: 99999999999\r\n\r\n".to_owned(),
            "Content-Length: 5\r\n\r\n{}".to_owned(),
            "Content-Length: 2\r\n\r\n]]".to_owned(),
            "X: 1\r\n\r\n".to_owned(),
            "a".repeat(10_000),
            "X: 1\r\n".repeat(20),
        ] {
            assert!(next(&mut bytes.as_bytes()).await.is_err(), "{bytes:.60}");
        }
    }
}
