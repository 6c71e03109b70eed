//! Colours and attributes. Without colours the attributes and the words remain.

use proto::v1;
use ratatui::style::{Color, Modifier, Style};

/// Colours that distinguish calls.
const HUES: [Color; 7] =
    [Color::Cyan, Color::Magenta, Color::Blue, Color::Yellow, Color::LightCyan, Color::LightMagenta, Color::LightBlue];

#[derive(Debug, Clone, Copy)]
pub(in crate::top) struct Theme {
    pub(in crate::top) has_colors: bool,
}

impl Theme {
    fn color(self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn good(self) -> Style {
        self.color(Color::Green)
    }

    pub(super) fn bad(self) -> Style {
        self.color(Color::Red)
    }

    pub(super) fn asking(self) -> Style {
        self.color(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(super) fn hue(self, index: usize) -> Style {
        self.color(HUES[index % HUES.len()])
    }

    pub(super) fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn void(self) -> Style {
        self.dim().add_modifier(Modifier::CROSSED_OUT)
    }

    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn run(self, status: v1::RunStatus) -> Style {
        match status {
            v1::RunStatus::Completed => self.good(),
            v1::RunStatus::Failed | v1::RunStatus::Cancelled | v1::RunStatus::Expired => self.bad(),
            v1::RunStatus::RequiresAction => self.asking(),
            v1::RunStatus::InProgress | v1::RunStatus::Unspecified => Style::new(),
        }
    }

    pub(super) fn call(self, state: v1::CallState) -> Style {
        match state {
            v1::CallState::Completed => self.good(),
            v1::CallState::Failed | v1::CallState::Cancelled | v1::CallState::Expired => self.bad(),
            v1::CallState::WaitingForClient | v1::CallState::AwaitingApproval => self.asking(),
            v1::CallState::Unspecified
            | v1::CallState::Accepted
            | v1::CallState::Delayed
            | v1::CallState::Queued
            | v1::CallState::Running => Style::new(),
        }
    }
}
