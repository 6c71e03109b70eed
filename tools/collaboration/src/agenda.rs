//! The agenda: entries with a beginning and an end. Nothing runs when they begin; for that there are schedules.

use std::ops::Range;

use jiff::{Span, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolyard_tool::{About, Context, Output, Permission, Tool, ToolError};

use crate::shelf::{Kept, Page, Shelf, after_of, fresh_id, limit_of, needed, text_of};

pub(crate) const PREFIX: &str = "agenda/";
const TITLE_BYTES_MAX: usize = 500;
const NOTES_BYTES_MAX: usize = 16 * 1024;
const OWNER_BYTES_MAX: usize = 200;
/// The longest entry. A list reads from so long before its beginning, so that no entry is missed.
const HOURS_MAX: i64 = 31 * 24;
/// Overlapping entries that an answer names.
const CONFLICTS_MAX: usize = 10;
/// The beginning of an entry in its id, which sorts by it.
const ID_TIME: &str = "%Y%m%dT%H%M%SZ";

/// Keeps an agenda in the records of its pool.
#[derive(Debug, Clone, Copy)]
pub struct Agenda;

/// What to do with the agenda.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgendaInput {
    /// What to do. add needs title, start and end; list and conflicts need start and end; remove needs id
    action: AgendaAction,
    /// The id of an entry, as add and list give it
    id: Option<String>,
    /// What it is about
    title: Option<String>,
    /// Everything else that matters
    notes: Option<String>,
    /// Whose agenda it is. Entries of different owners do not conflict
    owner: Option<String>,
    /// The beginning, with its offset, such as 2026-03-01T09:00:00+01:00
    start: Option<String>,
    /// The end, not included, with its offset
    end: Option<String>,
    /// For add: refuse an entry that overlaps others of its owner
    refuse_conflicts: Option<bool>,
    /// For list: at most this many, 1 to 50
    #[schemars(range(min = 1, max = 50))]
    limit: Option<u32>,
    /// For list: the `next` of the list before, to read on
    after: Option<String>,
}

/// What is done with the agenda.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgendaAction {
    Add,
    List,
    Conflicts,
    Remove,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AgendaEntry {
    pub(crate) title: String,
    #[serde(with = "as_text")]
    start: Timestamp,
    #[serde(with = "as_text")]
    end: Timestamp,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    owner: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) notes: String,
}

/// A time as its ISO 8601 text.
mod as_text {
    use jiff::Timestamp;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(at)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Tool for Agenda {
    const NAME: &'static str = "schedule";
    type Input = AgendaInput;

    fn about(&self) -> About {
        About::new(
            "Keeps an agenda of entries with a beginning and an end: add, list a range, find conflicts, remove. \
             Nothing is executed when an entry begins.",
        )
        .idempotent()
        .category("collaboration")
        .permission(Permission::Write)
        .side_effect_scope("records")
        .parallel_when(r#"{"properties":{"action":{"enum":["list","conflicts"]}},"required":["action"]}"#)
    }

    async fn call(&self, context: &Context, input: AgendaInput) -> Result<Output, ToolError> {
        let shelf = Shelf::new(PREFIX);
        match input.action {
            AgendaAction::Add => add(context, &shelf, input).await,
            AgendaAction::List => {
                let (start, end) = range(&input, "list")?;
                let (after, limit) = (after_of(input.after)?, limit_of(input.limit));
                let sought = Sought { range: start..end, owner: input.owner };
                Output::json(&page(context, &shelf, &sought, (&after, limit)).await?)
            }
            AgendaAction::Conflicts => {
                let range = range(&input, "conflicts")?;
                let sought = Sought { range: range.0..range.1, owner: Some(input.owner.unwrap_or_default()) };
                let found = overlapping(context, &shelf, &sought).await?;
                Output::json(&serde_json::json!({ "free": found.is_empty(), "conflicts": found }))
            }
            AgendaAction::Remove => {
                let id = needed(input.id, "id", "remove")?;
                shelf.remove(context, &id).await?;
                Output::json(&serde_json::json!({ "removed": id }))
            }
        }
    }
}

async fn add(context: &Context, shelf: &Shelf, input: AgendaInput) -> Result<Output, ToolError> {
    let (start, end) = range(&input, "add")?;
    if (end - start).get_seconds() > HOURS_MAX * 3600 {
        return Err(ToolError::bad_input("/end", "an entry lasts 31 days at most: add several"));
    }
    let title = text_of(needed(input.title, "title", "add")?, "title", TITLE_BYTES_MAX)?;
    let (owner, notes) = (input.owner.unwrap_or_default(), input.notes.unwrap_or_default());
    for (field, text, bytes_max) in [("owner", &owner, OWNER_BYTES_MAX), ("notes", &notes, NOTES_BYTES_MAX)] {
        if text.len() > bytes_max {
            let reason = format!("it has {} bytes, at most {bytes_max} are kept", text.len());
            return Err(ToolError::bad_input(format!("/{field}"), reason));
        }
    }
    let id = format!("{}-{}", start.strftime(ID_TIME), fresh_id(context));
    let sought = Sought { range: start..end, owner: Some(owner.clone()) };
    let conflicts = overlapping(context, shelf, &sought).await?;
    let conflicts: Vec<Kept<AgendaEntry>> = conflicts.into_iter().filter(|kept| kept.id != id).collect();
    if input.refuse_conflicts == Some(true)
        && let Some(first) = conflicts.first()
    {
        let (title, start, end) = (&first.thing.title, first.thing.start, first.thing.end);
        return Err(ToolError::model_retry(format!(
            "it overlaps {title:?} ({}), from {start} to {end}: choose another time, or allow conflicts",
            first.id
        )));
    }
    let kept = shelf.add(context, &id, AgendaEntry { title, start, end, owner, notes }).await?;
    Output::json(&serde_json::json!({ "entry": kept, "conflicts": conflicts }))
}

/// The entries that are wanted: those in a range, of one owner or of all.
struct Sought {
    range: Range<Timestamp>,
    owner: Option<String>,
}

/// The first entries that are in a range at least in part. Two calls that add at the same moment may not see each
/// other.
async fn overlapping(context: &Context, shelf: &Shelf, sought: &Sought) -> Result<Vec<Kept<AgendaEntry>>, ToolError> {
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let left = CONFLICTS_MAX - found.len();
        let Page { items, next } = page(context, shelf, sought, (&after, left)).await?;
        found.extend(items);
        match next {
            Some(next) if found.len() < CONFLICTS_MAX => after = next,
            Some(_) | None => return Ok(found),
        }
    }
}

/// Entries after an id that are in a range at least in part.
async fn page(
    context: &Context,
    shelf: &Shelf,
    sought: &Sought,
    (after, limit): (&str, usize),
) -> Result<Page<AgendaEntry>, ToolError> {
    let Sought { range: Range { start, end }, owner } = sought;
    let (start, end) = (*start, *end);
    let first = start.checked_sub(Span::new().hours(HOURS_MAX)).unwrap_or(Timestamp::MIN);
    let (first, last) = (first.strftime(ID_TIME).to_string(), end.strftime(ID_TIME).to_string());
    // Ids begin with the time to the second, so those of the last second are still looked at.
    let is_past = |id: &str| id.get(..last.len()).is_some_and(|time| time > last.as_str());
    let wanted = |kept: &Kept<AgendaEntry>| {
        let entry = &kept.thing;
        entry.start < end && start < entry.end && owner.as_ref().is_none_or(|owner| *owner == entry.owner)
    };
    shelf.list(context, (after.max(&first), limit), is_past, wanted).await
}

fn range(input: &AgendaInput, action: &str) -> Result<(Timestamp, Timestamp), ToolError> {
    let at = |text: &Option<String>, field: &str| {
        let text = needed(text.as_deref(), field, action)?;
        text.parse::<Timestamp>().map_err(|error| {
            let reason = format!("{text:?} is not a time with its offset, such as 2026-03-01T09:00:00+01:00: {error}");
            ToolError::bad_input(format!("/{field}"), reason)
        })
    };
    let (start, end) = (at(&input.start, "start")?, at(&input.end, "end")?);
    let is_four_digits = |at: Timestamp| (0..=9999).contains(&at.to_zoned(jiff::tz::TimeZone::UTC).year());
    match (start < end, is_four_digits(start) && is_four_digits(end)) {
        (true, true) => Ok((start, end)),
        (false, _) => Err(ToolError::bad_input("/end", "it is not after start")),
        (true, false) => Err(ToolError::bad_input("/start", "years 0 to 9999 are kept")),
    }
}
