//! The time of day in a time zone, from the tz database that is compiled in: the same answer on every machine.

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use schemars::JsonSchema;
use serde::Deserialize;

use super::scope;
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Ids proposed for an unknown one; more would be noise.
const PROPOSALS_MAX: usize = 5;

#[derive(Debug, Clone, Copy)]
pub struct CurrentTime;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Time zone id, such as Asia/Shanghai
    time_zone: String,
}

impl Tool for CurrentTime {
    const NAME: &'static str = "get_current_time";
    type Input = Place;

    fn about(&self) -> About {
        About::new("Get the time of a specified city.").read_only().category("time").side_effect_scope(scope::NONE)
    }

    async fn call(&self, _: &Context, place: Place) -> Result<Output, ToolError> {
        let zones = TimeZoneDatabase::bundled();
        let Ok(zone) = zones.get(&place.time_zone) else {
            return Err(unknown(&zones, &place.time_zone));
        };
        let now = Timestamp::now();
        Ok(answer(&zone, now).into())
    }
}

fn answer(zone: &TimeZone, now: Timestamp) -> String {
    let id = zone.iana_name().unwrap_or("unknown");
    let time = now.to_zoned(zone.clone());
    format!("The current time zone is {id} and the current time is {}", time.strftime("%Y-%m-%d %H:%M:%S %Z"))
}

fn unknown(zones: &TimeZoneDatabase, id: &str) -> ToolError {
    let proposals = proposals(zones, id);
    let hint = match proposals.as_slice() {
        [] => "use an IANA id such as Asia/Shanghai, Europe/Berlin or UTC".to_owned(),
        near => format!("did you mean {}?", near.join(", ")),
    };
    ToolError::new(format!("there is no time zone {id:?}: {hint}"))
}

/// Ids that contain the requested name, or else its last part: models get the city right more often than the continent.
fn proposals(zones: &TimeZoneDatabase, id: &str) -> Vec<String> {
    let wanted = id.trim().to_lowercase().replace(' ', "_");
    let city = wanted.rsplit('/').next().unwrap_or(&wanted);
    for part in [wanted.as_str(), city] {
        if part.is_empty() {
            continue;
        }
        let names = zones.available().map(|name| name.to_string());
        let near: Vec<String> = names.filter(|name| name.to_lowercase().contains(part)).take(PROPOSALS_MAX).collect();
        if !near.is_empty() {
            return near;
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(id: &str, seconds: i64) -> String {
        let zone = TimeZoneDatabase::bundled().get(id).unwrap();
        answer(&zone, Timestamp::from_second(seconds).unwrap())
    }

    #[test]
    fn the_answer_reads_as_models_were_taught() {
        let expected = "The current time zone is Asia/Shanghai and the current time is 2023-11-15 06:13:20 CST";
        assert_eq!(at("Asia/Shanghai", 1_700_000_000), expected);
    }

    #[test]
    fn the_abbreviation_follows_the_season() {
        assert!(at("Europe/Berlin", 1_700_000_000).ends_with(" 23:13:20 CET"));
        assert!(at("Europe/Berlin", 1_690_000_000).ends_with(" 06:26:40 CEST"));
    }
}
