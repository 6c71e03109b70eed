//! `get_current_time`, as a model calls it.

use run::ErrorKind;
use serde_json::json;
use tools::CurrentTime;
use toolyard_tool::testkit::{self, Called};

async fn time_in(zone: &str) -> Called {
    testkit::call(CurrentTime, json!({ "time_zone": zone })).await
}

#[tokio::test]
async fn a_zone_gives_its_time() {
    let answer = time_in("Asia/Shanghai").await.answer();
    let rest = answer.strip_prefix("The current time zone is Asia/Shanghai and the current time is ").unwrap();
    assert!(rest.ends_with(" CST"), "{rest}");
    assert_eq!(rest.len(), "2023-11-15 06:13:20 CST".len());
}

#[tokio::test]
async fn upper_and_lower_case_are_the_same() {
    assert!(time_in("asia/SHANGHAI").await.answer().contains(" Asia/Shanghai "));
}

#[tokio::test]
async fn a_city_on_the_wrong_continent_is_found() {
    let called = time_in("China/Shanghai").await;
    assert_eq!(called.error(), "there is no time zone \"China/Shanghai\": did you mean Asia/Shanghai?");
    assert!(time_in("new york").await.error().contains("America/New_York"));
}

#[tokio::test]
async fn an_unknown_zone_is_answered_with_what_an_id_looks_like() {
    assert!(time_in("Atlantis").await.error().contains("IANA id such as Asia/Shanghai"));
    assert!(time_in("").await.error().contains("IANA id such as Asia/Shanghai"));
}

#[tokio::test]
async fn at_most_five_ids_are_proposed() {
    assert_eq!(time_in("america").await.error().matches("America/").count(), 5);
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_refused() {
    for arguments in [json!({}), json!({ "time_zone": 8 }), json!({ "time_zone": "UTC", "city": "x" })] {
        let called = testkit::call(CurrentTime, arguments).await;
        assert_eq!(called.result.unwrap_err().kind, ErrorKind::ArgumentsInvalid);
    }
}
