//! A large registry: 2,000 tools of 500 workers that come and go. The cost of a page of them, and of an unrelated call.

use std::time::Duration;

use anyhow::ensure;
use async_nats::jetstream;
use proto::convert::manifest::manifest_in;
use proto::convert::worker::{Heartbeat, encode_advertisement};
use proto::names;
use proto::v1::{self, ListToolsRequest, tool_service_client::ToolServiceClient};
use serde_json::json;
use tonic::transport::Channel;

use crate::Effort;
use crate::execute::{Fleet, Yard};
use crate::measure::{self, Latencies};
use crate::results::Results;

const POOLS: u32 = 50;
const WORKERS_PER_POOL: u32 = 10;
const TOOLS_PER_POOL: u32 = 40;
/// As a worker beats.
const BEAT: Duration = Duration::from_secs(2);
const PAGES: u32 = 1_000;
const SINGLES: u32 = 2_000;

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let yard = Yard::start(Fleet::default()).await?;
    results.set("registry.call_beside_3_tools", singles(&yard, effort).await?);
    let broker = async_nats::connect(yard.broker.url()).await?;
    let workers = advertise(&broker).await?;
    tokio::select! {
        ended = beat(&broker, &workers) => ended,
        measured = pages(&yard, effort, results) => measured,
    }
}

async fn pages(yard: &Yard, effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let tools = ToolServiceClient::connect(format!("http://{}", yard.coordinators[0].ready)).await?;
    let all = ListToolsRequest { page_size: 1000, ..ListToolsRequest::default() };
    let last = ListToolsRequest { pool: format!("pool-{}", POOLS - 1), ..all.clone() };
    while list(tools.clone(), last.clone()).await? < TOOLS_PER_POOL as usize {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let first = ListToolsRequest { page_size: 100, ..all.clone() };
    let tagged = ListToolsRequest { tags: vec!["tag-7".to_owned()], ..all.clone() };
    for (name, request, expected) in [
        ("page_of_1000", all, 1000),
        ("page_of_100", first, 100),
        ("by_pool", last, TOOLS_PER_POOL as usize),
        ("by_tag", tagged, POOLS as usize),
    ] {
        eprintln!("registry: {name}");
        let mut latencies = Latencies::new();
        let listed = || async {
            let count = list(tools.clone(), request.clone()).await?;
            ensure!(count == expected, "{count} tools instead of {expected}");
            Ok(())
        };
        measure::one_by_one(effort.count(PAGES), &mut latencies, listed).await?;
        results.set(&format!("registry.{name}"), latencies.to_json());
    }
    mcp_pages(yard, effort, results).await?;
    results.set("registry.call_beside_2000_tools", singles(yard, effort).await?);
    Ok(())
}

/// The same tools for an MCP client: one page, and all of them page by page.
async fn mcp_pages(yard: &Yard, effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let http = harness::Http::new(yard.coordinators[0].ready.parse()?);
    let (mut page, mut all) = (Latencies::new(), Latencies::new());
    eprintln!("registry: mcp");
    measure::one_by_one(effort.count(PAGES), &mut page, || async { mcp_page(&http, None).await.map(drop) }).await?;
    let listed = || async {
        let (mut count, mut cursor) = (0, None);
        loop {
            let (tools, next) = mcp_page(&http, cursor).await?;
            count += tools;
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        ensure!(count >= (POOLS * TOOLS_PER_POOL) as usize, "{count} tools");
        Ok(())
    };
    measure::one_by_one(effort.count(PAGES / 10), &mut all, listed).await?;
    results.set("registry.mcp_page_of_250", page.to_json());
    results.set("registry.mcp_all_by_page", all.to_json());
    Ok(())
}

/// The number of tools in a page, and the cursor of the next one.
async fn mcp_page(http: &harness::Http, cursor: Option<String>) -> anyhow::Result<(usize, Option<String>)> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "_meta": meta, "cursor": cursor });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params }).to_string();
    let version = ("mcp-protocol-version", "2026-07-28");
    let headers = [("content-type", "application/json"), version, ("mcp-method", "tools/list")];
    let answer = http.ask(hyper::Method::POST, "/mcp", &headers, body).await;
    // Reading the definitions is the client's work.
    let text = std::str::from_utf8(&answer.body)?;
    ensure!(answer.status == 200, "{text}");
    let next = text.split("\"nextCursor\":\"").nth(1).and_then(|rest| rest.split('"').next());
    Ok((text.matches("\"inputSchema\":").count(), next.map(str::to_owned)))
}

async fn list(mut tools: ToolServiceClient<Channel>, request: ListToolsRequest) -> anyhow::Result<usize> {
    Ok(tools.list_tools(request).await?.into_inner().tools.len())
}

async fn singles(yard: &Yard, effort: Effort) -> anyhow::Result<serde_json::Value> {
    let mut latencies = Latencies::new();
    measure::one_by_one(effort.count(SINGLES), &mut latencies, || yard.call()).await?;
    Ok(latencies.to_json())
}

/// Says what the workers of each pool host, and gives what each worker says again and again.
async fn advertise(broker: &async_nats::Client) -> anyhow::Result<Vec<(String, Heartbeat)>> {
    let bucket = jetstream::new(broker.clone()).get_key_value(names::TOOLS_BUCKET).await?;
    let property = json!({ "type": "string", "description": "A word about what is to be done, as a model reads it." });
    let properties: serde_json::Map<_, _> = (0..10).map(|at| (format!("argument_{at}"), property.clone())).collect();
    let input_schema = json!({ "type": "object", "properties": properties }).to_string();
    let mut workers = Vec::new();
    for at in 0..POOLS {
        let tools = (0..TOOLS_PER_POOL).map(|tool| {
            let tool = v1::Tool {
                name: format!("tool_{at}_{tool}"),
                description: "Does something that takes a sentence or two to tell.".to_owned(),
                input_schema: input_schema.clone(),
                tags: vec![format!("tag-{tool}")],
                ..v1::Tool::default()
            };
            anyhow::Ok(manifest_in(tool)?.manifest)
        });
        let tools = tools.collect::<anyhow::Result<Vec<run::Manifest>>>()?;
        let (set, advertisement) = encode_advertisement(tools.iter());
        let pool: run::PoolId = format!("pool-{at}").parse()?;
        bucket.put(names::advertisement(&pool, &set), advertisement).await?;
        for number in 0..WORKERS_PER_POOL {
            let worker = format!("worker-{at}-{number}").parse()?;
            let heartbeat = Heartbeat {
                worker,
                slots: 16,
                running: 0,
                leaving: false,
                pulling: true,
                tools: set.clone(),
                draining: false,
                release: "0.1.0".to_owned(),
                sandbox: None,
                hooks: Vec::new(),
            };
            workers.push((names::heartbeat(&pool), heartbeat));
        }
    }
    Ok(workers)
}

async fn beat(broker: &async_nats::Client, workers: &[(String, Heartbeat)]) -> anyhow::Result<()> {
    let mut beats = 0_u32;
    loop {
        for (subject, heartbeat) in workers {
            // Some take calls and some do not, now this one and now that: the registry never stands still.
            let heartbeat = Heartbeat { pulling: !beats.is_multiple_of(3), ..heartbeat.clone() };
            broker.publish(subject.clone(), heartbeat.encode()).await?;
            beats += 1;
        }
        tokio::time::sleep(BEAT).await;
    }
}
