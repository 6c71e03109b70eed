//! Schedules: runs that are created at given times.

use proto::v1;

use crate::client::Client;
use crate::error::Error;

impl Client {
    /// Creates a schedule. With a request id, repeating it returns the same schedule, so it is repeated while the
    /// coordinator is away.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn create_schedule(&self, request: v1::CreateScheduleRequest) -> Result<v1::Schedule, Error> {
        let ask = || {
            let (mut schedules, request) = (self.schedules.clone(), request.clone());
            async move { schedules.create_schedule(request).await }
        };
        let created = if request.request_id.is_empty() {
            ask().await.map_err(|status| self.error(status))?.into_inner()
        } else {
            self.repeat(ask).await?
        };
        Ok(created.schedule.unwrap_or_default())
    }

    /// At most `limit` schedules, the newest first.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn list_schedules(
        &self,
        mut request: v1::ListSchedulesRequest,
        limit: usize,
    ) -> Result<Vec<v1::Schedule>, Error> {
        let mut schedules = Vec::new();
        loop {
            request.page_size = i32::try_from((limit - schedules.len()).max(1)).unwrap_or(i32::MAX);
            let page = self
                .repeat(|| {
                    let (mut schedules, request) = (self.schedules.clone(), request.clone());
                    async move { schedules.list_schedules(request).await }
                })
                .await?;
            schedules.extend(page.schedules);
            schedules.truncate(limit);
            if schedules.len() >= limit || page.next_page_token.is_empty() {
                return Ok(schedules);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// One schedule, with its next and its latest firings.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn schedule(&self, id: &str) -> Result<v1::Schedule, Error> {
        let request = v1::GetScheduleRequest { schedule_id: id.to_owned() };
        let got = self
            .repeat(|| {
                let (mut schedules, request) = (self.schedules.clone(), request.clone());
                async move { schedules.get_schedule(request).await }
            })
            .await?;
        Ok(got.schedule.unwrap_or_default())
    }

    /// Stops the firings of a schedule.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn pause_schedule(&self, id: &str, reason: &str) -> Result<v1::Schedule, Error> {
        let request = v1::PauseScheduleRequest { schedule_id: id.to_owned(), reason: reason.to_owned() };
        let paused = self
            .repeat(|| {
                let (mut schedules, request) = (self.schedules.clone(), request.clone());
                async move { schedules.pause_schedule(request).await }
            })
            .await?;
        Ok(paused.schedule.unwrap_or_default())
    }

    /// Lets a paused schedule fire again.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn resume_schedule(&self, id: &str) -> Result<v1::Schedule, Error> {
        let request = v1::ResumeScheduleRequest { schedule_id: id.to_owned() };
        let resumed = self
            .repeat(|| {
                let (mut schedules, request) = (self.schedules.clone(), request.clone());
                async move { schedules.resume_schedule(request).await }
            })
            .await?;
        Ok(resumed.schedule.unwrap_or_default())
    }

    /// Deletes a schedule.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn delete_schedule(&self, id: &str) -> Result<(), Error> {
        let request = v1::DeleteScheduleRequest { schedule_id: id.to_owned() };
        self.schedules.clone().delete_schedule(request).await.map_err(|status| self.error(status))?;
        Ok(())
    }

    /// Fires a schedule now. With a request id, repeating it returns the same run.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn run_schedule_now(&self, id: &str, request_id: &str) -> Result<v1::Run, Error> {
        let request = v1::RunScheduleNowRequest { schedule_id: id.to_owned(), request_id: request_id.to_owned() };
        let ask = async || self.schedules.clone().run_schedule_now(request.clone()).await;
        let fired = if request_id.is_empty() {
            ask().await.map_err(|status| self.error(status))?.into_inner()
        } else {
            self.persist(ask).await?
        };
        Ok(fired.run.unwrap_or_default())
    }
}
