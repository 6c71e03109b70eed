//! Operations of OpenAPI documents as tools, against a real server.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod service;

use std::path::Path;

use origins::http::{HttpTools, InvalidFile, Skipped};
use serde_json::{Value, json};
use service::Service;
use toolyard_tool::{ErrorKind, Table, testkit};

fn document() -> Value {
    json!({
        "openapi": "3.0.3",
        "servers": [{ "url": "/echo/{v}", "variables": { "v": { "default": "v1" } } }],
        "paths": {
            "/pets/{petId}": {
                "parameters": [{ "$ref": "#/components/parameters/petId" }],
                "get": {
                    "operationId": "getPet", "summary": "Gets a pet.", "tags": ["pets"],
                    "parameters": [
                        { "name": "fields", "in": "query",
                          "schema": { "type": "array", "items": { "type": "string" } } },
                        { "name": "ids", "in": "query", "explode": false, "schema": { "type": "array", "items": {} } },
                        { "name": "X-Trace", "in": "header", "schema": { "type": "string", "nullable": true } },
                    ],
                },
                "delete": { "tags": ["danger"] },
            },
            "/pets": {
                "post": {
                    "operationId": "create.pet", "tags": ["pets"],
                    "requestBody": { "required": true, "content": {
                        "application/json": { "schema": { "$ref": "#/components/schemas/Pet" } } } },
                },
            },
            "/login": {
                "post": {
                    "operationId": "login",
                    "requestBody": { "content": {
                        "application/x-www-form-urlencoded": { "schema": { "type": "object" } } } },
                },
            },
            "/bad/{missing}": { "get": { "operationId": "hole" } },
            "/bad/ref": { "get": { "operationId": "dangling",
                "parameters": [{ "$ref": "#/components/parameters/none" }] } },
            "/bad/loop": { "get": { "operationId": "loop", "parameters": [{ "$ref": "#/components/parameters/a" }] } },
            "/bad/outside": { "get": { "operationId": "outside", "parameters": [
                { "name": "q", "in": "query", "schema": { "$ref": "https://evil.example/schema.json" } }] } },
            "/bad/endless": { "get": { "operationId": "endless", "parameters": [
                { "name": "q", "in": "query", "schema": { "$ref": "#/components/schemas/Endless" } }] } },
            "/bad/cookie": { "get": { "operationId": "cookie", "parameters": [
                { "name": "c", "in": "cookie", "required": true, "schema": {} }] } },
            "/bad/xml": { "post": { "operationId": "xml", "requestBody": { "content": { "application/xml": {} } } } },
        },
        "components": {
            "parameters": {
                "petId": { "name": "petId", "in": "path", "required": true, "description": "Which pet",
                           "schema": { "type": "integer" } },
                "a": { "$ref": "#/components/parameters/b" },
                "b": { "$ref": "#/components/parameters/a" },
            },
            "schemas": {
                "Pet": {
                    "type": "object", "required": ["name", "id"],
                    "properties": {
                        "id": { "type": "integer", "readOnly": true },
                        "name": { "type": "string", "nullable": true, "example": "Rex" },
                        "age": { "type": "integer", "minimum": 0, "exclusiveMinimum": true },
                        "children": { "type": "array", "items": { "$ref": "#/components/schemas/Pet" } },
                    },
                },
                "Endless": { "$ref": "#/components/schemas/Endless" },
            },
        },
    })
}

async fn host(folder: &Path, lines: &str) -> Result<(Table, Vec<Skipped>), InvalidFile> {
    let path = folder.join("tools.toml");
    std::fs::write(&path, format!("[egress]\naddresses = [\"127.0.0.1\"]\n[[openapi]]\n{lines}")).unwrap();
    HttpTools::read(&path)?.host(Table::new()).await
}

fn names(table: &Table) -> Vec<String> {
    table.manifests().map(|manifest| manifest.name.to_string()).collect()
}

#[tokio::test]
async fn the_good_operations_of_a_document_are_tools_and_the_bad_ones_are_named() {
    let (service, folder) = (Service::with(document()).await, tempfile::tempdir().unwrap());
    let url = service.url("/openapi.json");
    let (table, skipped) = host(folder.path(), &format!("url = \"{url}\"\nprefix = \"p_\"\n")).await.unwrap();
    assert_eq!(names(&table), ["p_create_pet", "p_delete_pets__petId", "p_getPet", "p_login"]);
    for (place, reason) in [
        ("GET /bad/{missing}", "{missing}, which is no parameter"),
        ("GET /bad/ref", "where there is nothing"),
        ("GET /bad/loop", "lead to one another more than 16 times"),
        ("GET /bad/outside", "only #/… within the document is followed"),
        ("GET /bad/cookie", "cookies are not sent"),
        ("POST /bad/xml", "its body is application/xml"),
    ] {
        let found = skipped.iter().any(|skipped| skipped.place.ends_with(place) && skipped.reason.contains(reason));
        assert!(found, "{place}: {skipped:#?}");
    }
    assert!(skipped.iter().any(|skipped| skipped.place.contains("/bad/endless")), "{skipped:#?}");
    assert_eq!(skipped.len(), 7);
    let arguments = json!({ "petId": 7, "fields": ["a", "b"], "ids": [1, 2], "X-Trace": "t" });
    let answer = testkit::call_in(&table, "p_getPet", arguments).await.answer();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&answer["path"], &answer["query"]), (&json!("/echo/v1/pets/7"), &json!("fields=a&fields=b&ids=1%2C2")));
    assert_eq!(answer["headers"]["x-trace"], "t");
    let body = json!({ "name": null, "age": 1, "children": [{ "name": "b" }] });
    let answer = testkit::call_in(&table, "p_create_pet", json!({ "body": body })).await.answer();
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap()["body"], body);
    let deep = json!({ "body": { "name": "a", "children": [{ "name": "b", "age": 0 }] } });
    let refused = testkit::call_in(&table, "p_create_pet", deep).await.result.unwrap_err();
    assert_eq!(
        (refused.kind, refused.violations[0].path.as_str()),
        (ErrorKind::ArgumentsInvalid, "/body/children/0/age")
    );
    let answer = testkit::call_in(&table, "p_login", json!({ "body": { "user": "a b", "n": 1 } })).await.answer();
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap()["body"], "n=1&user=a+b");
}

#[tokio::test]
async fn operations_are_chosen_by_id_tag_and_path_and_changed_one_by_one() {
    let (service, folder) = (Service::start().await, tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("api.json"), document().to_string()).unwrap();
    let base = format!("file = \"api.json\"\nbase_url = \"{}\"\n", service.url("/echo"));
    for (lines, expected) in [
        ("operations = [\"get*\"]", vec!["getPet"]),
        ("tags = [\"pets\"]", vec!["create_pet", "getPet"]),
        ("paths = [\"/log*\"]", vec!["login"]),
        (
            "operations = [\"login\"]\n[openapi.override.login]\nname = \"sign_in\"\nidempotency_header = \"key\"",
            vec!["sign_in"],
        ),
    ] {
        let (table, _) = host(folder.path(), &format!("{base}{lines}\n")).await.unwrap();
        assert_eq!(names(&table), expected, "{lines}");
    }
    let wrong = host(folder.path(), &format!("{base}[openapi.override.none]\nname = \"a\"\n")).await.unwrap_err();
    assert!(wrong.to_string().contains("override.none: no wanted operation"), "{wrong}");
}

#[tokio::test]
async fn a_document_that_is_none_is_refused_with_the_place() {
    let (service, folder) = (Service::with(json!({ "swagger": "2.0" })).await, tempfile::tempdir().unwrap());
    let large = format!("{{\"openapi\":\"3.1.0\",\"x\":\"{}\"}}", "x".repeat(100 << 20));
    std::fs::write(folder.path().join("large.json"), large).unwrap();
    std::fs::write(folder.path().join("deep.json"), "[".repeat(100_000)).unwrap();
    std::fs::write(folder.path().join("api.yaml"), "openapi: 3.1.0\n").unwrap();
    for (lines, expected) in [
        ("file = \"large.json\"".to_owned(), "it has more than 16777216 bytes"),
        ("file = \"deep.json\"".to_owned(), "recursion limit"),
        ("file = \"api.yaml\"".to_owned(), "must be converted to JSON"),
        ("file = \"none.json\"".to_owned(), "cannot be read"),
        (format!("url = \"{}\"", service.url("/openapi.json")), "it is no OpenAPI document"),
        (format!("url = \"{}\"", service.url("/status/404")), "404 Not Found"),
        (String::new(), "either file or url"),
    ] {
        let error = host(folder.path(), &format!("{lines}\n")).await.unwrap_err().to_string();
        assert!(error.contains("openapi 1: ") && error.contains(expected), "{lines}: {error}");
    }
}
