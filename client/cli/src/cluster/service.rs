//! The supervisor's gRPC service: lists the processes and does to one of them what is asked.

use std::sync::Arc;

use epoka_proto::v1::supervisor_server::Supervisor as Service;
use epoka_proto::v1::{ActRequest, ActResponse, ProcessesRequest, ProcessesResponse};
use tonic::{Request, Response, Status};

use super::process::Process;
use super::supervisor::{Action, Supervisor};
use crate::target::Kind;

/// Serves one supervisor.
pub struct SupervisorService(pub Arc<Supervisor>);

#[tonic::async_trait]
impl Service for SupervisorService {
    async fn processes(
        &self,
        _: Request<ProcessesRequest>,
    ) -> Result<Response<ProcessesResponse>, Status> {
        let processes = self.0.processes().iter().map(|p| describe(p)).collect();
        Ok(Response::new(ProcessesResponse { processes }))
    }

    async fn act(&self, request: Request<ActRequest>) -> Result<Response<ActResponse>, Status> {
        let request = request.into_inner();
        let kind = match request.kind.as_str() {
            "broker" => Kind::Broker,
            "controller" => Kind::Controller,
            other => {
                return Err(Status::invalid_argument(format!(
                    "`{other}` is no kind of process"
                )));
            }
        };
        let action = Action::from_wire(request.action());
        // On a task of its own: a caller that goes away does not leave the action half done.
        let supervisor = self.0.clone();
        let acting = tokio::spawn(async move { supervisor.act(action, kind, request.id).await });
        let outcome = acting.await.map_err(|e| Status::internal(e.to_string()))?;
        Ok(Response::new(match outcome {
            Ok(pid) => ActResponse {
                refused: String::new(),
                pid,
            },
            Err(refused) => ActResponse { refused, pid: 0 },
        }))
    }
}

fn describe(process: &Process) -> epoka_proto::v1::Process {
    let status = process.status();
    let node = &process.node;
    epoka_proto::v1::Process {
        kind: node.kind.name().to_owned(),
        id: node.id,
        pid: status
            .pid
            .map_or(0, |pid| u32::try_from(pid.as_raw()).unwrap_or(0)),
        state: status.state.name().to_owned(),
        kafka: node.kafka.clone().unwrap_or_default(),
        grpc: node.grpc.clone(),
        log_dirs: node
            .log_dirs
            .iter()
            .map(|d| d.display().to_string())
            .collect(),
    }
}
