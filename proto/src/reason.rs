//! The reasons for which a request is refused: one table with the code, the statuses, the meaning and the remedy of
//! each.
//!
//! The coordinator sends them as `google.rpc.ErrorInfo` over gRPC and as `reason` and `remedy` over HTTP. The command
//! line reads the code back. `docs/reference/reasons.md` is generated from this table.

use http::StatusCode;
#[cfg(feature = "grpc")]
use tonic::Code;

/// The domain of the reasons in `google.rpc.ErrorInfo` and in problem details.
pub const DOMAIN: &str = "toolyard.dev";

/// Makes the enum and its exhaustive matches from one row per reason. The doc comment of a row is the meaning in the
/// docs.
macro_rules! reasons {
    ($(
        $(#[doc = $meaning:literal])+
        $name:ident = $code:literal, $grpc:ident, $http:ident $($flag:ident)*, $remedy:literal;
    )+) => {
        /// Why a request was refused. The codes are stable; new ones may be added.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[doc = $meaning])+ $name,)+
        }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The code on the wire, for programs.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$name => $code),+ }
            }

            /// The status of the refusal over gRPC.
            #[cfg(feature = "grpc")]
            #[must_use]
            pub const fn grpc(self) -> Code {
                match self { $(Self::$name => Code::$grpc),+ }
            }

            /// The status of the refusal over HTTP.
            #[must_use]
            pub const fn http(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$http),+ }
            }

            /// Whether the reason exists over HTTP alone.
            #[must_use]
            pub fn is_http_only(self) -> bool {
                let flags: &[&str] = match self { $(Self::$name => &[$(stringify!($flag)),*]),+ };
                flags.contains(&"http_only")
            }

            /// Whether the same request may succeed a moment later, and may be repeated without being done twice.
            #[must_use]
            pub fn is_temporary(self) -> bool {
                let flags: &[&str] = match self { $(Self::$name => &[$(stringify!($flag)),*]),+ };
                flags.contains(&"temporary")
            }

            /// What happened, for the docs.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($meaning),+)),+ }
            }

            /// What the client or its operator should do.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy),+ }
            }
        }
    };
}

reasons! {
    /// A field, parameter or header is missing, unknown, or has a value that is not allowed.
    Malformed = "MALFORMED", InvalidArgument, BAD_REQUEST,
        "correct the fields that the error names, then send the request again";
    /// The request contains no call, and the run is not left open for more.
    NoCalls = "NO_CALLS", InvalidArgument, BAD_REQUEST,
        "send at least one call, or set `keep_open`";
    /// The run would have more calls than a run may have.
    TooManyCalls = "TOO_MANY_CALLS", InvalidArgument, BAD_REQUEST,
        "distribute the calls over several runs";
    /// Two calls of the run have the same id.
    DuplicateCallId = "DUPLICATE_CALL_ID", InvalidArgument, BAD_REQUEST,
        "use a different id for each call of the run, or leave the ids out";
    /// The deadline is in the past.
    DeadlinePassed = "DEADLINE_PASSED", InvalidArgument, BAD_REQUEST,
        "choose a deadline in the future, at most 30 days ahead";
    /// The deadline is more than 30 days ahead.
    DeadlineTooFar = "DEADLINE_TOO_FAR", InvalidArgument, BAD_REQUEST,
        "choose a deadline at most 30 days ahead";
    /// The call is delayed beyond its deadline or that of its run.
    DelayTooLong = "DELAY_TOO_LONG", InvalidArgument, BAD_REQUEST,
        "choose an earlier `not_before`, or a later deadline of the run, at most 30 days ahead; use a schedule for \
        calls that are later than that";
    /// The call is delayed, but its client answers it.
    ClientCallDelayed = "CLIENT_CALL_DELAYED", InvalidArgument, BAD_REQUEST,
        "leave `not_before` out: only calls that workers execute can be delayed";
    /// The request contains no answer.
    NoAnswers = "NO_ANSWERS", InvalidArgument, BAD_REQUEST,
        "send the answer to at least one call";
    /// The request contains no decision.
    NoDecisions = "NO_DECISIONS", InvalidArgument, BAD_REQUEST,
        "send the decision on at least one call";
    /// A bulk request has no filter.
    NothingSelected = "NOTHING_SELECTED", InvalidArgument, BAD_REQUEST,
        "select calls by `state`, `tool`, `tenant` or time, or set `all` to select every open call";
    /// The changed arguments of a call do not match the schema of its tool, or an answer does not match its question.
    ArgumentsInvalid = "ARGUMENTS_INVALID", InvalidArgument, BAD_REQUEST,
        "send arguments that match the schema of the tool, or an answer that matches the schema of the question";
    /// The cron expression of the schedule fits no date in the future.
    NeverFires = "NEVER_FIRES", InvalidArgument, BAD_REQUEST,
        "correct the expression: for example, no month has the day that it names";
    /// The requested range of bytes is outside the object.
    OutOfObject = "OUT_OF_OBJECT", InvalidArgument, RANGE_NOT_SATISFIABLE,
        "request a range within the size of the object, which is in the error's metadata";
    /// `starting_after` is greater than the number of the last event.
    UnknownSequenceNumber = "UNKNOWN_SEQUENCE_NUMBER", InvalidArgument, BAD_REQUEST http_only,
        "send the number of the last event that you received, or leave `starting_after` out";
    /// The OpenAI request uses a feature that is not supported here.
    Unsupported = "UNSUPPORTED", InvalidArgument, BAD_REQUEST http_only,
        "remove the part that the error names";
    /// The model turn has none of the supported formats.
    FormUnknown = "FORM_UNKNOWN", InvalidArgument, BAD_REQUEST http_only,
        "send the assistant turn unchanged, as the model's API returned it, or set `format`";
    /// The model turn matches several formats.
    FormAmbiguous = "FORM_AMBIGUOUS", InvalidArgument, BAD_REQUEST http_only,
        "set `format` to the format of the turn";
    /// The model turn does not have the format that `format` names.
    FormMismatch = "FORM_MISMATCH", InvalidArgument, BAD_REQUEST http_only,
        "set `format` to the format of the turn, or leave it out";
    /// The body has a content type or a content encoding that is not supported.
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE", InvalidArgument, UNSUPPORTED_MEDIA_TYPE http_only,
        "send uncompressed JSON in UTF-8 with the content type `application/json`";

    /// The request has no credential, but this deployment requires one.
    CredentialMissing = "CREDENTIAL_MISSING", Unauthenticated, UNAUTHORIZED,
        "send a key or a token as `authorization: Bearer KEY`; `toolyard` reads it from `--key-file`";
    /// The credential is longer than the limit.
    CredentialTooLarge = "CREDENTIAL_TOO_LARGE", Unauthenticated, UNAUTHORIZED,
        "send a shorter key or token";
    /// The file of callers does not contain the key.
    KeyUnknown = "KEY_UNKNOWN", Unauthenticated, UNAUTHORIZED,
        "check that the key belongs to this deployment and is still in its file of callers";
    /// The token is expired, has a wrong signature, or has claims that are not accepted here.
    TokenRefused = "TOKEN_REFUSED", Unauthenticated, UNAUTHORIZED,
        "get a new token from the issuer that this deployment trusts";
    /// The client certificate belongs to no caller.
    CertificateUnknown = "CERTIFICATE_UNKNOWN", Unauthenticated, UNAUTHORIZED,
        "use the certificate of a caller, or have its subject added to the file of callers";

    /// The caller lacks the role that the request needs.
    RoleMissing = "ROLE_MISSING", PermissionDenied, FORBIDDEN,
        "use a key with the role that the error names, or have the role added in the file of callers";
    /// The caller does not belong to the tenant that the request names.
    TenantDenied = "TENANT_DENIED", PermissionDenied, FORBIDDEN,
        "leave the tenant out: it is that of the caller";
    /// Another caller opened the run, so this caller may not add calls to it.
    RunOfAnotherCaller = "RUN_OF_ANOTHER_CALLER", PermissionDenied, FORBIDDEN,
        "submit the calls in a run of your own";
    /// Another caller created the schedule, with whose rights it fires.
    ScheduleOfAnotherCaller = "SCHEDULE_OF_ANOTHER_CALLER", PermissionDenied, FORBIDDEN,
        "have its creator or an admin fire it, or create a schedule of your own";
    /// The answer token belongs to a different call.
    TokenForAnotherCall = "TOKEN_FOR_ANOTHER_CALL", PermissionDenied, FORBIDDEN,
        "use the token of this call, or the key of a caller";
    /// An answer token was used to create a further token or link.
    TokenForOneAnswer = "TOKEN_FOR_ONE_ANSWER", PermissionDenied, FORBIDDEN,
        "use the key of a caller: an answer token only answers its call";
    /// The caller may not call the tool.
    ToolDenied = "TOOL_DENIED", PermissionDenied, FORBIDDEN,
        "use a caller that may call the tool, or have the tool added to its rights in the file of callers";
    /// The coordinator has no key to sign answer tokens.
    AnswerTokensOff = "ANSWER_TOKENS_OFF", PermissionDenied, FORBIDDEN,
        "have the operator set `answer_token_key_file` in the file of callers";
    /// The coordinator has no key to sign links to objects.
    LinksOff = "LINKS_OFF", PermissionDenied, FORBIDDEN,
        "have the operator set `answer_token_key_file` in the file of callers";
    /// A hook of the deployment rejected the changed arguments of a call.
    DeniedByHook = "DENIED_BY_HOOK", PermissionDenied, FORBIDDEN,
        "change the arguments as the error says, or ask the operator about the hook";
    /// The request comes from a web page of another host, or to a host name that is not served.
    PageRefused = "PAGE_REFUSED", PermissionDenied, FORBIDDEN http_only,
        "send the request from a program or from a page of the same host; see docs/reference/http.md";

    /// There is no such run: it was never opened, was erased, or belongs to another tenant.
    RunNotFound = "RUN_NOT_FOUND", NotFound, NOT_FOUND,
        "check the run's id against the response that accepted the run";
    /// The run has no such call.
    CallNotFound = "CALL_NOT_FOUND", NotFound, NOT_FOUND,
        "get the run to see the ids of its calls: `GET /v1/runs/{run_id}` or `toolyard runs get RUN`";
    /// No worker has advertised a tool with this name.
    ToolNotFound = "TOOL_NOT_FOUND", NotFound, NOT_FOUND,
        "list the tools: `GET /v1/tools` or `toolyard tools ls`";
    /// No worker pool has this name.
    PoolNotFound = "POOL_NOT_FOUND", NotFound, NOT_FOUND,
        "list the workers and their pools: `GET /v1/workers` or `toolyard workers ls`";
    /// No live worker has this id.
    WorkerNotFound = "WORKER_NOT_FOUND", NotFound, NOT_FOUND,
        "list the live workers: `GET /v1/workers` or `toolyard workers ls`";
    /// No call's result refers to the object, or it is no longer kept.
    ObjectNotFound = "OBJECT_NOT_FOUND", NotFound, NOT_FOUND,
        "check the object's id against the call's result or the upload; objects are kept as long as their run";
    /// No schedule has this id.
    ScheduleNotFound = "SCHEDULE_NOT_FOUND", NotFound, NOT_FOUND,
        "list the schedules: `GET /v1/schedules` or `toolyard schedules ls`";
    /// The link is invalid or expired, or its issuer has lost access to the object.
    LinkUnknown = "LINK_UNKNOWN", NotFound, NOT_FOUND,
        "request a new link from its issuer";
    /// There is no such response: the id is unknown, or the response was deleted or is no longer kept.
    ResponseNotFound = "RESPONSE_NOT_FOUND", NotFound, NOT_FOUND http_only,
        "check the id against the response object that created it";
    /// No route has this path.
    NoSuchRoute = "NO_SUCH_ROUTE", NotFound, NOT_FOUND http_only,
        "look the path up in `GET /v1/openapi.json`";
    /// The route does not support this method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED", Unimplemented, METHOD_NOT_ALLOWED http_only,
        "look the route's methods up in `GET /v1/openapi.json`";

    /// The run is older than the log, so its events are no longer kept.
    EventsExpired = "EVENTS_EXPIRED", OutOfRange, GONE,
        "submit the calls again, under another request id, if you need their results and they may be executed twice";

    /// The coordinator runs without webhooks.
    WebhooksOff = "WEBHOOKS_OFF", FailedPrecondition, CONFLICT,
        "send the request to a coordinator that was started with `--webhooks`";
    /// The run is closed to further calls.
    RunClosed = "RUN_CLOSED", FailedPrecondition, CONFLICT,
        "submit the calls in a new run";
    /// The run has ended.
    RunEnded = "RUN_ENDED", FailedPrecondition, CONFLICT,
        "get the run to see the results of its calls; submit further calls in a new run";
    /// The call does not wait for an answer of its client.
    CallNotWaiting = "CALL_NOT_WAITING", FailedPrecondition, CONFLICT,
        "get the run to see the state of the call: it cannot be answered now";
    /// The call does not wait for approval.
    CallNotAwaitingApproval = "CALL_NOT_AWAITING_APPROVAL", FailedPrecondition, CONFLICT,
        "get the run to see the state of the call: it cannot be approved or rejected now";
    /// `all_required` is set, and the answer to at least one waiting call is missing.
    AnswersMissing = "ANSWERS_MISSING", FailedPrecondition, CONFLICT,
        "answer all calls that wait in one request; an API that does not demand all answers takes them one by one";
    /// The call is not parked.
    CallNotParked = "CALL_NOT_PARKED", FailedPrecondition, CONFLICT,
        "get the run to see the state of the call; `toolyard parked ls` lists the parked calls";
    /// The parked call would be refused if it was redriven now. It stays parked.
    RedriveRefused = "REDRIVE_REFUSED", FailedPrecondition, CONFLICT,
        "do what the error says, such as having a caller with the right redrive it, then redrive it again";
    /// The call was parked, and has been redriven or dropped since.
    CallNotParkedAnyMore = "CALL_NOT_PARKED_ANY_MORE", FailedPrecondition, CONFLICT,
        "no further action is possible: another request has already redriven or dropped the call";
    /// The previous response has not ended yet.
    ResponseInProgress = "RESPONSE_IN_PROGRESS", FailedPrecondition, CONFLICT http_only,
        "wait until the response has ended, then send the request again";
    /// The previous response has no open call that the request could answer.
    ResponseNotWaiting = "RESPONSE_NOT_WAITING", FailedPrecondition, CONFLICT http_only,
        "name the response that has open calls, or send new calls without `previous_response_id`";

    /// The call already has a different answer.
    CallAlreadyAnswered = "CALL_ALREADY_ANSWERED", AlreadyExists, CONFLICT,
        "get the run to see the stored answer: it is kept, and this one was discarded";
    /// The call already has a different decision.
    CallAlreadyDecided = "CALL_ALREADY_DECIDED", AlreadyExists, CONFLICT,
        "get the run to see the stored decision: it is kept, and this one was discarded";
    /// The request id was already used for a different request.
    RequestIdTaken = "REQUEST_ID_TAKEN", AlreadyExists, CONFLICT,
        "use a new request id for each different request";

    /// The request id was already used for a different schedule.
    ScheduleExists = "SCHEDULE_EXISTS", AlreadyExists, CONFLICT,
        "use a new request id for each different schedule, or delete the schedule that the error names";

    /// The request, or a part of it, is larger than the limit.
    PayloadTooLarge = "PAYLOAD_TOO_LARGE", ResourceExhausted, PAYLOAD_TOO_LARGE,
        "send less in one request, or put large input in files";
    /// The log, or the bucket of request ids, has no room for new runs.
    LogFull = "LOG_FULL", ResourceExhausted, SERVICE_UNAVAILABLE temporary,
        "retry later: runs that have ended leave a log that is half full; `toolyard log usage` shows the limits";
    /// The tenant or the caller has reached one of its quotas.
    QuotaExceeded = "QUOTA_EXCEEDED", ResourceExhausted, TOO_MANY_REQUESTS temporary,
        "retry after the delay in `Retry-After` or `RetryInfo`, or have the quota raised";
    /// The tenant has as many schedules as it may have, or the broker has no room for more.
    SchedulesFull = "SCHEDULES_FULL", ResourceExhausted, PAYLOAD_TOO_LARGE,
        "delete schedules that you no longer need; ended ones are deleted after 25 hours";
    /// The uploads of the tenant have reached their limit of bytes.
    UploadsFull = "UPLOADS_FULL", ResourceExhausted, PAYLOAD_TOO_LARGE,
        "delete uploads that you no longer need, or have `upload_bytes` of the tenant's quota raised";
    /// The tenant has reached its limit of uploads.
    TooManyUploads = "TOO_MANY_UPLOADS", ResourceExhausted, PAYLOAD_TOO_LARGE,
        "delete uploads that you no longer need, or combine small files into one upload";
    /// The coordinator is processing as many uploads as it can.
    UploadsBusy = "UPLOADS_BUSY", ResourceExhausted, SERVICE_UNAVAILABLE temporary,
        "retry in a moment, or at another coordinator";
    /// The coordinator holds as many bytes of stored images for answers as it can.
    InlinedBusy = "INLINED_BUSY", ResourceExhausted, SERVICE_UNAVAILABLE temporary,
        "retry in a moment, or at another coordinator";
    /// The object store is full.
    ObjectsFull = "OBJECTS_FULL", ResourceExhausted, SERVICE_UNAVAILABLE temporary,
        "delete uploads that you no longer need, wait until objects have expired, or give the store more room";
    /// The coordinator is receiving as many unfinished requests as it can.
    RequestsFull = "REQUESTS_FULL", ResourceExhausted, SERVICE_UNAVAILABLE temporary,
        "retry in a moment, and send the body without pauses";
    /// The coordinator has as many connections as it accepts.
    TooManyConnections = "TOO_MANY_CONNECTIONS", ResourceExhausted, SERVICE_UNAVAILABLE http_only temporary,
        "close idle connections and share one, or connect to another coordinator";

    /// Too many other requests changed the run, or used the request id, at the same time.
    Contended = "CONTENDED", Aborted, CONFLICT temporary,
        "retry in a moment";

    /// The broker does not respond. Nothing was stored.
    BrokerUnavailable = "BROKER_UNAVAILABLE", Unavailable, SERVICE_UNAVAILABLE temporary,
        "retry in a moment; if it lasts, check that nats-server runs: `toolyard doctor`";
    /// The object store does not respond.
    ObjectsUnavailable = "OBJECTS_UNAVAILABLE", Unavailable, SERVICE_UNAVAILABLE temporary,
        "retry in a moment; if it lasts, check the object store";
    /// The history of ended runs does not respond. Only runs that have left the log need it.
    HistoryUnavailable = "HISTORY_UNAVAILABLE", Unavailable, SERVICE_UNAVAILABLE temporary,
        "retry in a moment; if it lasts, check the store of the history";
    /// What the history has of the run cannot be read. Other runs are not affected.
    HistoryDamaged = "HISTORY_DAMAGED", DataLoss, INTERNAL_SERVER_ERROR,
        "restore the history's files from a copy (docs/howto/history.md), or go on without the run";
    /// The store of the index does not respond. Only lists and counts need it.
    IndexUnavailable = "INDEX_UNAVAILABLE", Unavailable, SERVICE_UNAVAILABLE temporary,
        "retry in a moment; if it lasts, check the Redis or Valkey server";
    /// The coordinator has not yet loaded the keys of the tokens' issuer.
    IssuerUnavailable = "ISSUER_UNAVAILABLE", Unavailable, SERVICE_UNAVAILABLE temporary,
        "retry in a moment; if it lasts, check that the coordinator can reach the issuer";
    /// The coordinator is shutting down.
    ShuttingDown = "SHUTTING_DOWN", Unavailable, SERVICE_UNAVAILABLE temporary,
        "retry in a moment, or at another coordinator";
    /// The worker did not confirm that it drains.
    WorkerSilent = "WORKER_SILENT", Unavailable, SERVICE_UNAVAILABLE,
        "check the worker, or end its process: other workers take over its calls";

    /// The deadline of the request passed. If the error names a run, the run continues.
    DeadlineExceeded = "DEADLINE_EXCEEDED", DeadlineExceeded, GATEWAY_TIMEOUT,
        "get the run that the error names, or allow more time";
    /// The request did not arrive in time.
    RequestTimeout = "REQUEST_TIMEOUT", DeadlineExceeded, REQUEST_TIMEOUT,
        "send the request again, without pauses";
    /// The upload was slower than the minimum rate.
    UploadTooSlow = "UPLOAD_TOO_SLOW", DeadlineExceeded, GATEWAY_TIMEOUT,
        "upload again over a faster connection";
    /// The broker did not confirm the request in time. It was stored, or it never will be.
    Unconfirmed = "UNCONFIRMED", DeadlineExceeded, GATEWAY_TIMEOUT,
        "get the run that the error names to see whether it was stored, or repeat the request with its request id";
}

impl Reason {
    /// The reason with this code; `None` if it is not known here, because it comes from a newer coordinator.
    #[must_use]
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fmt::Write as _;
    use std::fs;
    use std::path::Path;

    use super::*;

    const HEAD: &str = "\
# Reasons

<!-- Generated from proto/src/reason.rs: TOOLYARD_WRITE_REASONS=1 cargo test -p toolyard-proto --lib reasons_page -->

Every refused request carries a reason. Over gRPC it is in `google.rpc.ErrorInfo` with the domain `toolyard.dev`; over
HTTP it is the field `reason` of the problem, beside `remedy` ([http.md](http.md#problems)). The codes are stable. New
ones may be added, so a client should treat an unknown code by its status. A refused request stores nothing. The
exceptions are `UNCONFIRMED` and `DEADLINE_EXCEEDED` if the error names a run: that run may be stored.

A gRPC status of `-` means that the reason exists over HTTP alone. A *temporary* refusal names a delay in `Retry-After`
or `RetryInfo`: after it the same request may be sent again.

| reason | gRPC status | HTTP status | temporary | meaning | what to do |
|---|---|---|---|---|---|
";

    /// The name of a gRPC status as the protocol spells it: `InvalidArgument` is `INVALID_ARGUMENT`.
    fn name(code: Code) -> String {
        let mut name = String::new();
        for letter in format!("{code:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        name
    }

    fn page() -> String {
        let mut page = HEAD.to_owned();
        for reason in Reason::ALL {
            let grpc = if reason.is_http_only() { "-".to_owned() } else { format!("`{}`", name(reason.grpc())) };
            let (code, http) = (reason.code(), reason.http().as_u16());
            let temporary = if reason.is_temporary() { "yes" } else { "" };
            let (meaning, remedy) = (reason.meaning().trim(), reason.remedy());
            writeln!(page, "| `{code}` | {grpc} | {http} | {temporary} | {meaning} | {remedy} |")
                .expect("a string takes it");
        }
        page
    }

    #[test]
    fn the_reasons_page_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/reasons.md");
        if std::env::var_os("TOOLYARD_WRITE_REASONS").is_some() {
            fs::write(&path, page()).expect("the page can be written");
        }
        let stored = fs::read_to_string(&path).expect("the page exists");
        assert!(
            stored == page(),
            "docs/reference/reasons.md is out of date: run this test with TOOLYARD_WRITE_REASONS=1"
        );
    }

    #[test]
    fn every_reason_is_found_by_its_code() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_code(reason.code()), Some(*reason));
        }
        assert_eq!(Reason::from_code("A_CODE_OF_A_LATER_RELEASE"), None);
        assert_eq!(Reason::ALL.iter().map(|reason| reason.code()).collect::<HashSet<_>>().len(), Reason::ALL.len());
    }

    #[test]
    fn a_code_is_its_name_in_capitals() {
        for reason in Reason::ALL {
            assert_eq!(reason.code().replace('_', ""), format!("{reason:?}").to_uppercase());
        }
    }

    /// The rule by which a client that knows only the status can act: a wrong request is 4xx, a failure of ours 5xx.
    #[test]
    fn the_two_statuses_of_a_reason_agree() {
        for reason in Reason::ALL {
            let (grpc, http) = (reason.grpc(), reason.http());
            let is_agreed = match grpc {
                Code::InvalidArgument | Code::NotFound | Code::Unauthenticated | Code::PermissionDenied => {
                    http.is_client_error()
                }
                Code::FailedPrecondition | Code::AlreadyExists | Code::Aborted => http == StatusCode::CONFLICT,
                Code::OutOfRange => http == StatusCode::GONE,
                Code::ResourceExhausted => http.is_client_error() || http == StatusCode::SERVICE_UNAVAILABLE,
                Code::Unavailable => http == StatusCode::SERVICE_UNAVAILABLE,
                Code::DeadlineExceeded => http == StatusCode::GATEWAY_TIMEOUT || http == StatusCode::REQUEST_TIMEOUT,
                Code::Unimplemented => http == StatusCode::METHOD_NOT_ALLOWED,
                Code::DataLoss => http == StatusCode::INTERNAL_SERVER_ERROR,
                Code::Ok | Code::Cancelled | Code::Unknown | Code::Internal => false,
            };
            assert!(is_agreed, "{reason:?}: {grpc:?} and {http}");
        }
    }
}
