//! The role that each method of the API needs, over gRPC and HTTP alike.

use crate::auth::callers::Role;

const NEEDS: [(&str, &str, Role); 43] = [
    ("RunService", "CreateRun", Role::Submit),
    ("RunService", "ExecuteRun", Role::Submit),
    ("RunService", "ExecuteRuns", Role::Submit),
    ("RunService", "AppendCalls", Role::Submit),
    ("RunService", "CloseRun", Role::Submit),
    ("RunService", "CancelRun", Role::Submit),
    ("RunService", "CancelCall", Role::Submit),
    ("RunService", "RedriveCall", Role::Submit),
    ("RunService", "DropCall", Role::Submit),
    ("RunService", "EraseRuns", Role::Admin),
    ("RunService", "WatchRun", Role::Read),
    ("RunService", "GetRun", Role::Read),
    ("RunService", "ExplainCall", Role::Read),
    ("RunService", "SubmitToolOutputs", Role::Answer),
    ("RunService", "CreateAnswerToken", Role::Answer),
    ("RunService", "DecideCalls", Role::Approve),
    ("ToolService", "ListTools", Role::Read),
    ("ToolService", "GetTool", Role::Read),
    ("FleetService", "Pause", Role::Admin),
    ("FleetService", "Resume", Role::Admin),
    ("FleetService", "ListPauses", Role::Admin),
    ("FleetService", "ListWorkers", Role::Admin),
    ("FleetService", "DrainWorker", Role::Admin),
    ("FleetService", "GetOverview", Role::Read),
    ("ObjectService", "ReadObject", Role::Read),
    ("ObjectService", "CreateObject", Role::Submit),
    ("ObjectService", "CreateObjectLink", Role::Read),
    ("ObjectService", "DeleteObject", Role::Submit),
    ("IndexService", "ListRuns", Role::Read),
    ("IndexService", "ListCalls", Role::Read),
    ("IndexService", "CountRuns", Role::Read),
    ("IndexService", "CancelCalls", Role::Submit),
    ("IndexService", "VerifyIndex", Role::Admin),
    ("IndexService", "RebuildIndex", Role::Admin),
    ("ScheduleService", "CreateSchedule", Role::Submit),
    ("ScheduleService", "ListSchedules", Role::Read),
    ("ScheduleService", "GetSchedule", Role::Read),
    ("ScheduleService", "PauseSchedule", Role::Submit),
    ("ScheduleService", "ResumeSchedule", Role::Submit),
    ("ScheduleService", "DeleteSchedule", Role::Submit),
    ("ScheduleService", "RunScheduleNow", Role::Submit),
    ("WebhookService", "ListParkedWebhooks", Role::Admin),
    ("WebhookService", "RedriveWebhooks", Role::Admin),
];

/// All methods: the service and the name of each.
pub(crate) fn methods() -> impl Iterator<Item = (&'static str, &'static str)> {
    NEEDS.iter().map(|(service, name, _)| (*service, *name))
}

/// The role that a method needs. Methods that are not listed are for admins.
pub(crate) fn needs(service: &str, method: &str) -> Role {
    let listed = NEEDS.iter().find(|(in_service, name, _)| (*in_service, *name) == (service, method));
    listed.map_or(Role::Admin, |(_, _, role)| *role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_api_says_what_it_needs() {
        let mut methods: Vec<_> = proto::openapi::Method::all().collect();
        let mut needs: Vec<_> =
            NEEDS.iter().map(|(service, name, _)| ((*service).to_owned(), (*name).to_owned())).collect();
        methods.sort_unstable();
        needs.sort_unstable();
        assert_eq!(methods, needs);
    }

    #[test]
    fn what_nobody_thought_of_is_for_admins() {
        assert_eq!(needs("RunService", "Unheard"), Role::Admin);
    }
}
