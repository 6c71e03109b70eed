//! The weather of a city, from a service that answers as weatherapi.com does. An error is logged, and the model gets
//! `null`: it then says that it does not know.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use pinyin::ToPinyin as _;
use reqwest::header::HeaderName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolyard_tool::{About, InvalidTool, Output, Table, tool};

use crate::endpoint::Endpoint;
use crate::settings::WeatherSettings;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Characters with several readings, and the one that they have in most names of cities: Chongqing, Xiamen, Changsha,
/// Chengdu, Bengbu.
const READINGS: [(char, &str); 5] = [('重', "chong"), ('厦', "xia"), ('长', "chang"), ('都', "du"), ('蚌', "beng")];

/// The service.
#[derive(Debug)]
pub(crate) struct Weather(Endpoint);

/// What a model reads.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Forecast {
    city: String,
    current: Map<String, Value>,
    forecast_days: Vec<Map<String, Value>>,
}

/// What the service answers, as far as it is of use.
#[derive(Deserialize)]
struct Answered {
    location: Location,
    current: Map<String, Value>,
    forecast: Days,
}

#[derive(Deserialize)]
struct Location {
    name: String,
}

#[derive(Deserialize)]
struct Days {
    forecastday: Vec<Map<String, Value>>,
}

impl Weather {
    pub(crate) fn new(settings: &WeatherSettings) -> anyhow::Result<Self> {
        let key = settings.api_key.as_ref().context("the weather needs api-key")?;
        let key = key.read().context("the key of the weather service cannot be read")?;
        let header = (HeaderName::from_static("key"), key);
        Ok(Self(Endpoint::new(&settings.base_url, "/v1/forecast.json", header, TIMEOUT)?))
    }

    /// The forecast, or nothing: the log has the reason.
    async fn forecast(&self, city: &str, days: u8) -> Option<Forecast> {
        if city.trim().is_empty() {
            tracing::error!("invalid request: a city is required");
            return None;
        }
        let fetched = self.fetch(&place(city), days).await;
        fetched.inspect_err(|error| tracing::error!(city, "fetching weather failed: {error:#}")).ok()
    }

    async fn fetch(&self, place: &str, days: u8) -> anyhow::Result<Forecast> {
        let answered = self.0.get(&[("q", place), ("days", &days.to_string())]).await?;
        let Answered { location, current, forecast } = answered;
        Ok(Forecast { city: location.name, current, forecast_days: forecast.forecastday })
    }
}

/// A city as the service finds it: Chinese characters become pinyin, all others stay.
fn place(city: &str) -> String {
    let mut place = String::new();
    for letter in city.trim().chars() {
        let known = READINGS.iter().find(|(character, _)| *character == letter).map(|(_, reading)| *reading);
        match known.or_else(|| letter.to_pinyin().map(pinyin::Pinyin::plain)) {
            Some(reading) => place.push_str(reading),
            None => place.push(letter),
        }
    }
    place
}

/// Use api.weather to get weather information.
#[tool(name = "getWeatherServiceMethod", read_only, open_world, category = "weather")]
async fn get_weather_service_method(
    weather: Arc<Weather>,
    /// City name
    city: String,
    /// Number of days of weather forecast. Value ranges from 1 to 14
    #[schemars(range(min = 1, max = 14))]
    days: u8,
) -> Option<Forecast> {
    weather.forecast(&city, days).await
}

/// Weather Service API request
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Request {
    /// city name
    city: String,
    /// Number of days of weather forecast. Value ranges from 1 to 14
    #[schemars(range(min = 1, max = 14))]
    days: u8,
}

pub(crate) fn host(table: Table, weather: &Arc<Weather>) -> Result<Table, InvalidTool> {
    let about = About::new("Use api.weather to get weather information.").read_only().open_world().category("weather");
    let shared = Arc::clone(weather);
    let function = move |Request { city, days }: Request, _| {
        let weather = Arc::clone(&shared);
        async move { Output::json(&weather.forecast(&city, days).await) }
    };
    table.host(GetWeatherServiceMethod(Arc::clone(weather)))?.host_fn("getWeatherFunction", about, function)
}
