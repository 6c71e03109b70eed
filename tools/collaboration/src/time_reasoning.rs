//! Calculations with times and dates, which models get wrong. The tz database is compiled in.

use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp, Unit, Zoned};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

use crate::shelf::needed;

/// The days of the longest range in which business days are counted, and the most that are added.
const BUSINESS_DAYS_MAX: i32 = 36_600;
const HOLIDAYS_MAX: u32 = 1000;

/// Calculates with times.
#[derive(Debug, Clone, Copy)]
pub struct TimeReasoning;

/// A calculation.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeInput {
    /// What to calculate. parse, weekday and convert need time; difference and business_days need time and until; add
    /// needs time and duration; add_business_days needs time and days
    action: TimeAction,
    /// A time: ISO 8601 with offset (2026-03-01T09:00:00+01:00), without one (then it is in zone), or a date
    /// (2026-03-01)
    time: Option<String>,
    /// Another time, in the same forms
    until: Option<String>,
    /// A time zone id, such as Europe/Berlin; UTC if not given
    zone: Option<String>,
    /// For convert: the time zone id to convert to
    to_zone: Option<String>,
    /// A duration to add, such as P1M2DT3H, 90m or -2 weeks
    duration: Option<String>,
    /// How many business days to add; negative to go back
    days: Option<i32>,
    /// Dates that are no business days, such as 2026-12-25
    #[schemars(length(max = HOLIDAYS_MAX))]
    holidays: Option<Vec<String>>,
}

/// What is calculated.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimeAction {
    Now,
    Parse,
    Convert,
    Difference,
    Add,
    Weekday,
    BusinessDays,
    AddBusinessDays,
}

impl Tool for TimeReasoning {
    const NAME: &'static str = "time_reasoning";
    type Input = TimeInput;

    fn about(&self) -> About {
        About::new(
            "Calculates with times and dates exactly: now, parse, convert between time zones, difference, add a \
             duration, weekday, count or add business days (Monday to Friday, without holidays).",
        )
        .read_only()
        .category("time")
    }

    async fn call(&self, _: &Context, input: TimeInput) -> Result<Output, ToolError> {
        Output::json(&calculate(&input)?)
    }
}

fn calculate(input: &TimeInput) -> Result<Value, ToolError> {
    let zone = zone_of(input.zone.as_deref(), "zone")?;
    let time = |action: &str| at(needed(input.time.as_deref(), "time", action)?, "time", &zone);
    let until = |action: &str| at(needed(input.until.as_deref(), "until", action)?, "until", &zone);
    match input.action {
        TimeAction::Now => Ok(shown(&Timestamp::now().to_zoned(zone))),
        TimeAction::Parse => Ok(shown(&time("parse")?)),
        TimeAction::Convert => {
            needed(input.to_zone.as_ref(), "to_zone", "convert")?;
            Ok(shown(&time("convert")?.with_time_zone(zone_of(input.to_zone.as_deref(), "to_zone")?)))
        }
        TimeAction::Difference => difference(&time("difference")?, &until("difference")?),
        TimeAction::Add => {
            let text = needed(input.duration.as_deref(), "duration", "add")?;
            let bad = |error: jiff::Error| ToolError::bad_input("/duration", format!("{text:?}: {error}"));
            let span: Span = text.parse().map_err(bad)?;
            Ok(shown(&time("add")?.checked_add(span).map_err(bad)?))
        }
        TimeAction::Weekday => {
            let time = time("weekday")?;
            let date = time.date();
            Ok(json!({ "weekday": name(date.weekday()), "is_weekend": is_weekend(date), "date": date.to_string() }))
        }
        TimeAction::BusinessDays => {
            let (first, last) = (time("business_days")?.date(), until("business_days")?.date());
            business_days(first, last, &holidays(input)?)
        }
        TimeAction::AddBusinessDays => {
            let days = needed(input.days, "days", "add_business_days")?;
            add_business_days(time("add_business_days")?.date(), days, &holidays(input)?)
        }
    }
}

fn zone_of(id: Option<&str>, field: &str) -> Result<TimeZone, ToolError> {
    let Some(id) = id else { return Ok(TimeZone::UTC) };
    TimeZoneDatabase::bundled().get(id).map_err(|_| {
        let reason = format!("there is no time zone {id:?}: give an IANA id such as Europe/Berlin");
        ToolError::bad_input(format!("/{field}"), reason)
    })
}

/// A time in one of the forms. A local time that a clock change skips is moved forward, as calendars do.
fn at(text: &str, field: &str, zone: &TimeZone) -> Result<Zoned, ToolError> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at.to_zoned(zone.clone()));
    }
    let local = text.parse::<DateTime>().and_then(|local| local.to_zoned(zone.clone()));
    local.map_err(|error| {
        let reason = format!("{text:?} is no time such as 2026-03-01T09:00:00+01:00 or 2026-03-01: {error}");
        ToolError::bad_input(format!("/{field}"), reason)
    })
}

fn shown(time: &Zoned) -> Value {
    json!({
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        "zone": time.time_zone().iana_name().unwrap_or("UTC"),
        "weekday": name(time.weekday()),
        "unix_seconds": time.timestamp().as_second(),
        "day_of_year": time.day_of_year(),
        "iso_week": time.date().iso_week_date().week(),
    })
}

fn difference(from: &Zoned, until: &Zoned) -> Result<Value, ToolError> {
    let span = from.until((Unit::Year, until))?;
    let seconds = until.timestamp().as_second() - from.timestamp().as_second();
    Ok(json!({
        "duration": span.to_string(),
        "words": format!("{span:#}"),
        "total_seconds": seconds,
        "total_days": from.date().until(until.date())?.get_days(),
    }))
}

fn name(day: Weekday) -> &'static str {
    match day {
        Weekday::Monday => "Monday",
        Weekday::Tuesday => "Tuesday",
        Weekday::Wednesday => "Wednesday",
        Weekday::Thursday => "Thursday",
        Weekday::Friday => "Friday",
        Weekday::Saturday => "Saturday",
        Weekday::Sunday => "Sunday",
    }
}

fn is_weekend(date: Date) -> bool {
    matches!(date.weekday(), Weekday::Saturday | Weekday::Sunday)
}

fn holidays(input: &TimeInput) -> Result<Vec<Date>, ToolError> {
    let date = |(index, text): (usize, &String)| {
        let bad = |error: jiff::Error| {
            ToolError::bad_input(
                format!("/holidays/{index}"),
                format!("{text:?} is no date such as 2026-12-25: {error}"),
            )
        };
        text.parse::<Date>().map_err(bad)
    };
    input.holidays.iter().flatten().enumerate().map(date).collect()
}

/// Business days from the first date on and before the last one.
fn business_days(first: Date, last: Date, holidays: &[Date]) -> Result<Value, ToolError> {
    let days = first.until(last)?.get_days();
    if !(0..=BUSINESS_DAYS_MAX).contains(&days) {
        let reason = format!("it is {days} days after time: give 0 to {BUSINESS_DAYS_MAX}");
        return Err(ToolError::bad_input("/until", reason));
    }
    let (mut date, mut count) = (first, 0);
    while date < last {
        count += i32::from(!is_weekend(date) && !holidays.contains(&date));
        date = date.tomorrow()?;
    }
    Ok(json!({ "business_days": count, "days": days, "from": first.to_string(), "until": last.to_string() }))
}

fn add_business_days(first: Date, days: i32, holidays: &[Date]) -> Result<Value, ToolError> {
    if days.saturating_abs() > BUSINESS_DAYS_MAX {
        return Err(ToolError::bad_input("/days", format!("{days}: at most {BUSINESS_DAYS_MAX} are added")));
    }
    let (mut date, mut left) = (first, days.abs());
    while left > 0 {
        date = if days < 0 { date.yesterday()? } else { date.tomorrow()? };
        left -= i32::from(!is_weekend(date) && !holidays.contains(&date));
    }
    Ok(json!({ "date": date.to_string(), "weekday": name(date.weekday()) }))
}
