//! Calls as the log has them.

use std::sync::Arc;

use run::{
    Approval, AskedBy, CallError, CallSpec, Concurrency, ErrorKind, File, HookAnswer, ResultUse, Route, Timestamp,
    WithoutWorker,
};

use super::{attempt_in, attempt_out, each_in, object};
use crate::convert::api::{contents, without_worker};
use crate::convert::fields::fields_out;
use crate::convert::manifest::concurrency_out;
use crate::convert::worker::{index_in, question_number_in};
use crate::convert::{
    InvalidMessage, approval_default, approval_default_out, concurrency, contents_out, error_in, error_out, object_in,
    object_out, policy_in, policy_out, priority, priority_out,
};
use crate::v1;
use crate::wire::v1 as wire;

/// What an earlier release says of a call that a hook answered.
const UNREADABLE: &str = "a hook answered the call, which this release cannot show";

pub(super) fn specs_out(calls: &[Arc<CallSpec>]) -> Vec<wire::CallSpec> {
    calls.iter().map(|spec| spec_out(spec)).collect()
}

pub(super) fn specs_in(calls: Vec<wire::CallSpec>) -> Result<Vec<Arc<CallSpec>>, InvalidMessage> {
    each_in(calls, |spec| spec_in(spec).map(Arc::new))
}

pub(super) fn spec_out(spec: &CallSpec) -> wire::CallSpec {
    let route = match &spec.route {
        Route::Pool { pool, policy, version } => wire::call_spec::Route::Pool(wire::PoolRoute {
            pool: pool.to_string(),
            policy: Some(policy_out(policy)),
            version: version.as_ref().map(ToString::to_string).unwrap_or_default(),
        }),
        Route::Client => wire::call_spec::Route::Client(wire::ClientRoute {}),
        Route::Refused(error) => wire::call_spec::Route::Refused(error_out(error)),
        Route::Answered(_) => {
            wire::call_spec::Route::Refused(error_out(&CallError::new(ErrorKind::Denied, UNREADABLE)))
        }
    };
    let answered = match &spec.route {
        Route::Answered(HookAnswer { hook, result }) => {
            Some(wire::HookAnswer { hook: hook.clone(), result: contents_out(result) })
        }
        Route::Pool { .. } | Route::Client | Route::Refused(_) => None,
    };
    wire::CallSpec {
        id: spec.id.to_string(),
        tool: spec.tool.to_string(),
        arguments: spec.arguments.clone(),
        metadata: spec.metadata.clone().into_iter().collect(),
        not_before_ms: spec.not_before.map_or(0, |until| until.0),
        deadline_ms: spec.deadline.0,
        queue_deadline_ms: spec.queue_deadline.map_or(0, |deadline| deadline.0),
        without_worker: match spec.without_worker {
            WithoutWorker::Wait => v1::WithoutWorker::Wait,
            WithoutWorker::Fail => v1::WithoutWorker::Fail,
        }
        .into(),
        concurrency: concurrency_out(spec.concurrency).into(),
        approval: spec.approval.map(|approval| wire::Approval {
            deadline_ms: approval.deadline.0,
            default: approval_default_out(approval.default).into(),
        }),
        r#final: spec.result_use.is_final,
        return_direct: spec.result_use.return_direct,
        hidden: spec.result_use.hidden,
        context: fields_out(&spec.context),
        files: spec.files.iter().map(file_out).collect(),
        asked_by: spec.asked_by.map(asked_by_out),
        required_hooks: spec.required_hooks.clone(),
        priority: priority_out(spec.priority).into(),
        answered,
        route: Some(route),
    }
}

pub(super) fn spec_in(wire: wire::CallSpec) -> Result<CallSpec, InvalidMessage> {
    let route = match wire.route.ok_or(InvalidMessage::Missing("the route of a call"))? {
        wire::call_spec::Route::Pool(route) => Route::Pool {
            pool: route.pool.parse()?,
            policy: policy_in(route.policy.ok_or(InvalidMessage::Missing("the policy of a call"))?),
            version: (!route.version.is_empty()).then(|| route.version.parse()).transpose()?,
        },
        wire::call_spec::Route::Client(_) => Route::Client,
        wire::call_spec::Route::Refused(error) => match wire.answered {
            Some(answered) => Route::Answered(HookAnswer { hook: answered.hook, result: contents(answered.result)? }),
            None => Route::Refused(error_in(error)),
        },
    };
    let concurrent = concurrency(v1::ToolConcurrency::try_from(wire.concurrency).unwrap_or_default());
    let without_worker = without_worker(v1::WithoutWorker::try_from(wire.without_worker).unwrap_or_default());
    Ok(CallSpec {
        id: wire.id.parse()?,
        tool: wire.tool.parse()?,
        arguments: wire.arguments,
        metadata: wire.metadata.into_iter().collect(),
        route,
        not_before: (wire.not_before_ms > 0).then_some(Timestamp(wire.not_before_ms)),
        deadline: Timestamp(wire.deadline_ms),
        queue_deadline: (wire.queue_deadline_ms > 0).then_some(Timestamp(wire.queue_deadline_ms)),
        without_worker,
        concurrency: concurrent.unwrap_or(Concurrency::Parallel),
        approval: wire.approval.map(|approval| Approval {
            deadline: Timestamp(approval.deadline_ms),
            default: approval_default(v1::ApprovalDefault::try_from(approval.default).unwrap_or_default()),
        }),
        result_use: ResultUse { is_final: wire.r#final, return_direct: wire.return_direct, hidden: wire.hidden },
        context: object("context", &wire.context)?,
        files: wire.files.into_iter().map(file_in).collect::<Result<_, _>>()?,
        asked_by: wire.asked_by.map(asked_by_in).transpose()?,
        required_hooks: wire.required_hooks,
        priority: priority(v1::Priority::try_from(wire.priority).unwrap_or_default()),
    })
}

fn asked_by_out(AskedBy { attempt, number }: AskedBy) -> wire::AskedBy {
    let call = u32::from(attempt.call.0);
    wire::AskedBy { call, attempt: Some(attempt_out(attempt)), number: u32::from(number) }
}

fn asked_by_in(wire: wire::AskedBy) -> Result<AskedBy, InvalidMessage> {
    let call = index_in(wire.call)?;
    let attempt = attempt_in(wire.attempt.ok_or(InvalidMessage::Missing("the attempt that asks"))?, call);
    Ok(AskedBy { attempt, number: question_number_in(wire.number)? })
}

fn file_out(file: &File) -> wire::File {
    wire::File { name: file.name.clone(), object: Some(object_out(&file.object)) }
}

fn file_in(wire: wire::File) -> Result<File, InvalidMessage> {
    let object = object_in(wire.object.ok_or(InvalidMessage::Missing("the object of a file"))?)?;
    Ok(File { name: wire.name, object })
}
