//! How calls come to the event loop of Python without Python's lock: a thread that took the lock for each call would
//! wait for whatever Python executes meanwhile, and Python for that thread. The event loop is woken once for all calls
//! that came since it last looked.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::worker::ToolError;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::call::Call;

/// Names a call in this process.
pub(crate) type Key = u64;

/// A call that begins: its key, the number of its tool, itself, and its arguments as JSON.
type Begun = (Key, u32, Call, String);
type PythonBegun<'py> = (Key, u32, Bound<'py, Call>, Bound<'py, PyBytes>);

#[derive(Default)]
struct Items {
    begun: Vec<Begun>,
    /// Calls that should stop. They began before.
    stopping: Vec<Key>,
    is_closed: bool,
}

impl Items {
    fn take(&mut self) -> (Vec<Begun>, Vec<Key>) {
        (std::mem::take(&mut self.begun), std::mem::take(&mut self.stopping))
    }
}

/// The side of the threads that have calls.
pub(crate) struct Outside {
    items: Mutex<Items>,
    wake: UnixStream,
}

impl Outside {
    pub(crate) fn begin(&self, begun: Begun) -> Result<(), ToolError> {
        match self.put(|items| items.begun.push(begun)) {
            true => Ok(()),
            false => Err(ToolError::new("the app of this tool is closed")),
        }
    }

    pub(crate) fn stop(&self, key: Key) {
        // An app that is closed has stopped its functions.
        let _: bool = self.put(|items| items.stopping.push(key));
    }

    /// `false` if nothing is taken any more.
    fn put(&self, put: impl FnOnce(&mut Items)) -> bool {
        let mut items = self.items();
        if items.is_closed {
            return false;
        }
        let was_empty = items.begun.is_empty() && items.stopping.is_empty();
        put(&mut items);
        drop(items);
        if was_empty {
            // If there is no room for another byte, the loop is woken already.
            drop((&self.wake).write(&[0]));
        }
        true
    }

    fn items(&self) -> MutexGuard<'_, Items> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The side of the event loop.
#[pyclass(frozen)]
pub(crate) struct Inbox {
    outside: Arc<Outside>,
    woken: UnixStream,
}

impl Inbox {
    pub(crate) fn outside(&self) -> Arc<Outside> {
        Arc::clone(&self.outside)
    }

    fn open() -> std::io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        Ok(Self { outside: Arc::new(Outside { items: Mutex::default(), wake }), woken })
    }
}

#[pymethods]
impl Inbox {
    #[new]
    fn new() -> PyResult<Self> {
        Self::open().map_err(|error| PyOSError::new_err(format!("cannot make a pair of sockets: {error}")))
    }

    /// Readable when there is something to take.
    fn fileno(&self) -> RawFd {
        self.woken.as_raw_fd()
    }

    /// Calls that begin, and then keys of calls that should stop.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<(Vec<PythonBegun<'py>>, Vec<Key>)> {
        // Before the items are taken: whatever comes after them writes again.
        drop((&self.woken).read(&mut [0; 64]));
        let (begun, stopping) = self.outside.items().take();
        let begun = begun.into_iter().map(|(key, tool, call, arguments)| {
            Ok((key, tool, Bound::new(py, call)?, PyBytes::new(py, arguments.as_bytes())))
        });
        Ok((begun.collect::<PyResult<_>>()?, stopping))
    }

    /// From now on calls fail, as those that did not begin.
    fn close(&self) {
        let mut items = self.outside.items();
        items.is_closed = true;
        let left = items.take();
        drop(items);
        drop(left);
    }
}
