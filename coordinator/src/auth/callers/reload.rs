//! Reloads the file of callers and the files that it names when they change. If a new file cannot be used, the error is
//! logged and the old content stays in effect.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::book::{Book, File};
use super::issuer::{self, Issuer};
use super::jwt::Keys;
use super::{Callers, Shared};
use crate::metrics;
use crate::tasks::LOOK;

#[derive(Debug, thiserror::Error)]
pub enum CallersError {
    #[error("cannot read {}: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{} cannot be used:\n  {}", file.display(), mistakes.join("\n  "))]
    Mistakes { file: PathBuf, mistakes: Vec<String> },
}

/// The content of the files.
struct FileContent {
    book: Book,
    /// Keys of the issuer, if they are in a file.
    keys: Option<Keys>,
    issuer: Option<Issuer>,
}

#[derive(Debug)]
pub(crate) struct CallersReload {
    path: PathBuf,
    seen: [u8; 32],
    book: watch::Sender<Arc<Book>>,
    keys: Arc<watch::Sender<Option<Arc<Keys>>>>,
    issuer: watch::Sender<Option<Arc<Issuer>>>,
    wanted: Arc<Notify>,
}

/// Reads and checks the file, and all files that it names.
///
/// # Errors
/// If a file cannot be read, or with every mistake in it.
pub(crate) fn open(path: &Path) -> Result<(Callers, CallersReload), CallersError> {
    let (seen, FileContent { book, keys, issuer }) = load(path)?;
    metrics::tenants::reserve(book.named_tenants());
    let (book, book_receiver) = watch::channel(Arc::new(book));
    let (keys, keys_receiver) = watch::channel(keys.map(Arc::new));
    let issuer = watch::Sender::new(issuer.map(Arc::new));
    let wanted = Arc::new(Notify::new());
    let shared = Shared { book: book_receiver, issuer: keys_receiver, wanted: Arc::clone(&wanted) };
    let keeper = CallersReload { path: path.to_owned(), seen, book, keys: Arc::new(keys), issuer, wanted };
    Ok((Callers(Some(Arc::new(shared))), keeper))
}

impl CallersReload {
    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let fetching =
            issuer::keep(self.issuer.subscribe(), Arc::clone(&self.keys), Arc::clone(&self.wanted), stop.clone());
        tokio::join!(fetching, self.look(stop));
    }

    async fn look(&mut self, stop: CancellationToken) {
        let mut failed = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            match load(&self.path) {
                Ok((seen, _)) if seen == self.seen => failed = None,
                Ok((seen, content)) => {
                    (self.seen, failed) = (seen, None);
                    self.take(content);
                    tracing::info!(file = %self.path.display(), "file of callers reloaded");
                }
                Err(error) => {
                    let text = error.to_string();
                    if failed.as_ref() != Some(&text) {
                        tracing::error!(%error, "reloading the file of callers failed; the old content stays in \
                            effect");
                        failed = Some(text);
                    }
                }
            }
        }
    }

    fn take(&self, FileContent { book, keys, issuer }: FileContent) {
        // If keys are fetched from an address, the old ones stay in effect until the new ones are loaded.
        if keys.is_some() || issuer.is_none() {
            self.keys.send_replace(keys.map(Arc::new));
        }
        metrics::tenants::reserve(book.named_tenants());
        self.issuer.send_replace(issuer.map(Arc::new));
        self.book.send_replace(Arc::new(book));
    }
}

fn load(path: &Path) -> Result<([u8; 32], FileContent), CallersError> {
    let mistakes = |mistakes: Vec<String>| CallersError::Mistakes { file: path.to_owned(), mistakes };
    let mut hash = Sha256::new();
    let mut read = |file: &Path| {
        // Paths in the file are relative to its folder.
        let file = path.parent().map_or_else(|| file.to_owned(), |folder| folder.join(file));
        let content = std::fs::read(&file).map_err(|source| CallersError::Read { file: file.clone(), source })?;
        hash.update((content.len() as u64).to_be_bytes());
        hash.update(&content);
        Ok::<_, CallersError>((file, content))
    };
    let own = path.file_name().map_or(path, Path::new);
    let (_, text) = read(own)?;
    let text = String::from_utf8(text).map_err(|error| mistakes(vec![format!("it is not text: {error}")]))?;
    let file = File::parse(path, &text).map_err(|mistake| mistakes(vec![mistake]))?;
    let answer_key = file.answer_token_key_file.as_deref().map(&mut read).transpose()?;
    let answer_key = answer_key.as_ref().map(|(_, content)| content.trim_ascii());
    let (mut keys, mut issuer) = (None, None);
    if let Some(jwt) = &file.jwt {
        let wrong = |reason: String| mistakes(vec![format!("jwt.jwks: {reason}")]);
        if jwt.jwks.contains("://") {
            let ca = jwt.ca.as_deref().map(&mut read).transpose()?.map(|(file, _)| file);
            issuer = Some(Issuer::new(&jwt.jwks, ca.as_deref()).map_err(wrong)?);
        } else {
            let (_, content) = read(Path::new(&jwt.jwks))?;
            keys = Some(Keys::parse(&content).map_err(wrong)?);
        }
    }
    let book = file.check(answer_key).map_err(mistakes)?;
    Ok((hash.finalize().into(), FileContent { book, keys, issuer }))
}
