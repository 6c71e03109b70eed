//! The weather of a city, from a service that answers as weatherapi.com does. An error is logged, and the model gets
//! `null`: it then says that it does not know.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pinyin::ToPinyin as _;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Client, Url, redirect};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolyard_tool::{About, InvalidTool, Output, Table, tool};

use crate::settings::WeatherSettings;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of an answer: that for 14 days has some 300 KB.
const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Characters with several readings, and the one that they have in most names of cities: Chongqing, Xiamen, Changsha,
/// Chengdu, Bengbu.
const READINGS: [(char, &str); 5] = [('重', "chong"), ('厦', "xia"), ('长', "chang"), ('都', "du"), ('蚌', "beng")];

/// The service.
#[derive(Debug)]
pub(crate) struct Weather {
    client: Client,
    url: Url,
}

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
        let mut key = HeaderValue::from_str(&key).context("the key of the weather service is no header")?;
        key.set_sensitive(true);
        // Another server would get the key.
        let client = Client::builder().timeout(TIMEOUT).redirect(redirect::Policy::none());
        let client = client.default_headers(HeaderMap::from_iter([("key".parse()?, key)])).build()?;
        let url = format!("{}/v1/forecast.json", settings.base_url.trim_end_matches('/'));
        let url = Url::parse(&url).with_context(|| format!("base-url is {:?}", settings.base_url))?;
        Ok(Self { client, url })
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
        let mut url = self.url.clone();
        url.query_pairs_mut().append_pair("q", place).append_pair("days", &days.to_string());
        let mut answer = self.client.get(url).send().await?.error_for_status()?;
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await? {
            ensure!(body.len() + part.len() <= ANSWER_BYTES_MAX, "the answer has more than {ANSWER_BYTES_MAX} bytes");
            body.extend_from_slice(&part);
        }
        let Answered { location, current, forecast } =
            serde_json::from_slice(&body).context("the answer is no forecast")?;
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
