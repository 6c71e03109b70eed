//! The terminal in the state that the console needs, and as it was before when the console ends, however it ends.

use std::io::{self, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::Show;
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

use crate::exit::Failure;

/// A thread has panicked, and its message is on the screen.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    pub(super) fn open() -> Result<Self, Failure> {
        enable_raw_mode().map_err(Failure::Output)?;
        // From here on, dropping it restores the terminal.
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).map_err(|error| {
            restore();
            Failure::Output(error)
        })?;
        let screen = Self { terminal };
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            HAS_PANICKED.store(true, Ordering::Relaxed);
            restore();
            usual(panic);
        }));
        execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste).map_err(Failure::Output)?;
        Ok(screen)
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> Result<(), Failure> {
        if HAS_PANICKED.load(Ordering::Relaxed) {
            return Err(Failure::Died { part: "a task of the console" });
        }
        self.terminal.draw(draw).map(drop).map_err(Failure::Output)
    }

    pub(super) fn height(&self) -> u16 {
        self.terminal.size().map_or(24, |size| size.height)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if !HAS_PANICKED.load(Ordering::Relaxed) {
            restore();
        }
    }
}

/// Failures are ignored: the terminal is gone, or there is nothing else to do.
fn restore() {
    drop(execute!(io::stdout(), DisableBracketedPaste, LeaveAlternateScreen, Show));
    drop(disable_raw_mode());
}
