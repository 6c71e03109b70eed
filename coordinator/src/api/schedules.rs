//! `toolyard.v1.ScheduleService`: schedules.

use proto::v1;

use super::read::{malformed, new_run, reason};
use super::{Api, ApiError};
use crate::admission::custom::CustomTools;
use crate::admission::error::RequestError;
use crate::runs::NewRun;
use crate::trace::run_out;

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 500;

/// Converts the request of a schedule's run, which has no tools of its own.
pub(crate) fn read_run(run: v1::CreateRunRequest) -> Result<NewRun, RequestError> {
    new_run(run, CustomTools::new())
}

impl Api {
    pub(crate) async fn create_schedule(
        &self,
        request: v1::CreateScheduleRequest,
    ) -> Result<v1::CreateScheduleResponse, ApiError> {
        let schedule = Box::pin(self.schedules.create(&self.runs, request)).await?;
        Ok(v1::CreateScheduleResponse { schedule: Some(schedule) })
    }

    pub(crate) fn list_schedules(
        &self,
        request: &v1::ListSchedulesRequest,
    ) -> Result<v1::ListSchedulesResponse, ApiError> {
        let size = match usize::try_from(request.page_size) {
            Ok(0) => PAGE_DEFAULT,
            Ok(size) => size.min(PAGE_MAX),
            Err(_) => return Err(malformed("page_size")("must not be negative").into()),
        };
        let tenant = match request.tenant.as_str() {
            "" => None,
            tenant => Some(tenant.parse().map_err(malformed("tenant"))?),
        };
        if request.status != 0 && request.status() == v1::ScheduleStatus::Unspecified {
            return Err(malformed("status")("is not a value that is known here").into());
        }
        // The token is the position of the page's last schedule.
        let after: Option<(u64, &str)> = match request.page_token.as_str() {
            "" => None,
            token => {
                let last = token.split_once('.').and_then(|(time, id)| Some((time.parse().ok()?, id)));
                Some(last.ok_or_else(|| malformed("page_token")("was not returned by an earlier request"))?)
            }
        };
        let status = request.status();
        let listed = self.schedules.list(&self.runs.caller, tenant)?;
        let is_wanted = |record: &crate::schedules::Record| {
            (status == v1::ScheduleStatus::Unspecified || record.status() == status)
                && after.is_none_or(|after| record.position() < after)
        };
        let mut rest = listed.iter().filter(|known| is_wanted(&known.record));
        let page: Vec<_> = rest.by_ref().take(size).collect();
        let last = page.last().map(|known| known.record.position()).filter(|_| rest.next().is_some());
        let next_page_token = last.map(|(time, id)| format!("{time}.{id}")).unwrap_or_default();
        let without_firings = |schedule| v1::Schedule { firings: Vec::new(), ..schedule };
        let schedules = page.iter().map(|known| without_firings(known.shown())).collect();
        Ok(v1::ListSchedulesResponse { schedules, next_page_token })
    }

    pub(crate) async fn get_schedule(
        &self,
        request: v1::GetScheduleRequest,
    ) -> Result<v1::GetScheduleResponse, ApiError> {
        let known = self.schedules.get(&self.runs.caller, &request.schedule_id).await?;
        Ok(v1::GetScheduleResponse { schedule: Some(known.shown()) })
    }

    pub(crate) async fn pause_schedule(
        &self,
        request: v1::PauseScheduleRequest,
    ) -> Result<v1::PauseScheduleResponse, ApiError> {
        let why = reason(&request.reason)?;
        let schedule = self.schedules.pause(&self.runs.caller, &request.schedule_id, why).await?;
        Ok(v1::PauseScheduleResponse { schedule: Some(schedule) })
    }

    pub(crate) async fn resume_schedule(
        &self,
        request: v1::ResumeScheduleRequest,
    ) -> Result<v1::ResumeScheduleResponse, ApiError> {
        let schedule = self.schedules.resume(&self.runs.caller, &request.schedule_id).await?;
        Ok(v1::ResumeScheduleResponse { schedule: Some(schedule) })
    }

    pub(crate) async fn delete_schedule(
        &self,
        request: v1::DeleteScheduleRequest,
    ) -> Result<v1::DeleteScheduleResponse, ApiError> {
        self.schedules.delete(&self.runs.caller, &request.schedule_id).await?;
        Ok(v1::DeleteScheduleResponse {})
    }

    pub(crate) async fn run_schedule_now(
        &self,
        request: v1::RunScheduleNowRequest,
    ) -> Result<v1::RunScheduleNowResponse, ApiError> {
        let run = Box::pin(self.schedules.run_now(&self.runs, &request.schedule_id, &request.request_id)).await?;
        Ok(v1::RunScheduleNowResponse { run: Some(run_out(&run)) })
    }
}
