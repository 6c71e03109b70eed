//! The time of a city, as a function with an attribute and as a manifest with a closure.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::Deserialize;
use toolyard_tool::{About, InvalidTool, Table, ToolError, tool};

fn time_in(zone: &str) -> Result<String, ToolError> {
    let Ok(found) = TimeZone::get(zone) else {
        let message = format!("there is no time zone {zone:?}: use an id such as Asia/Shanghai");
        return Err(ToolError::bad_input("/timeZoneId", message));
    };
    let now = Timestamp::now().to_zoned(found);
    let time = now.strftime("%Y-%m-%d %H:%M:%S %Z");
    Ok(format!("The current time zone is {zone} and the current time is {time}"))
}

/// Get the time of a specified city.
#[tool(name = "getCityTimeMethod", read_only, category = "time")]
async fn get_city_time_method(
    /// Time zone id, such as Asia/Shanghai
    #[serde(rename = "timeZoneId")]
    time_zone_id: String,
) -> Result<String, ToolError> {
    time_in(&time_zone_id)
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct City {
    /// Time zone id, such as Asia/Shanghai
    time_zone_id: String,
}

pub(crate) fn host(table: Table) -> Result<Table, InvalidTool> {
    let about = About::new("Get the time of a specified city.").read_only().category("time");
    let function = |city: City, _| async move { Ok(time_in(&city.time_zone_id)?.into()) };
    table.host(GetCityTimeMethod)?.host_fn("getCityTimeFunction", about, function)
}
