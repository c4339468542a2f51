//! The health of devices for the kubelet, which shows it in the status of pods.
//!
//! It is what the last look at the GPUs found, as in the taints of the slices. The kubelet opens
//! one stream, and takes the health as unknown if no later look comes.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::stream::{BoxStream, StreamExt, unfold};
use tokio::sync::watch;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::{Request, Response, Status};

use crate::device::Board;
use crate::prepare::Tenants;
use crate::wire::health::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use crate::wire::health::{
    DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};

/// The names of the service, the newest first. The versions have the same messages.
pub const SERVICES: [&str; 3] = [V1, V1_BETA_1, V1_ALPHA_1];
const V1: &str = "v1.DRAResourceHealth";
const V1_BETA_1: &str = "v1beta1.DRAResourceHealth";
const V1_ALPHA_1: &str = "v1alpha1.DRAResourceHealth";

/// The longest message, in characters: a limit of the kubelet.
const MESSAGE_CHARS_MAX: usize = 1024;
/// The kubelet's own timeout, which ours is never below.
const TIMEOUT_S: u64 = 30;

/// The report on these GPUs. Pure.
#[must_use]
pub fn report(boards: &[Board], pool: &str, looked_at_s: i64, look_s: u64) -> NodeWatchResourcesResponse {
    // Two looks may fail to come.
    let timeout_s = i64::try_from(look_s.saturating_mul(3).max(TIMEOUT_S)).unwrap_or(i64::MAX);
    let health = |board: &Board, device: String| DeviceHealth {
        device: Some(DeviceIdentifier { pool_name: pool.to_owned(), device_name: device }),
        health: match board.fault {
            None => HealthStatus::Healthy,
            Some(_) => HealthStatus::Unhealthy,
        }
        .into(),
        last_updated_time: looked_at_s,
        health_check_timeout_seconds: timeout_s,
        message: board.fault.iter().flat_map(|fault| fault.chars()).take(MESSAGE_CHARS_MAX).collect(),
    };
    let devices = boards.iter().flat_map(|board| board.devices().into_iter().map(|one| health(board, one)));
    NodeWatchResourcesResponse { devices: devices.collect() }
}

/// The service.
#[derive(Clone)]
pub struct Health {
    /// The GPUs.
    pub tenants: Arc<Tenants>,
    /// The name of the pool.
    pub pool: String,
    /// When the GPUs were last looked at, in seconds of Unix time.
    pub looked_at_s: watch::Receiver<i64>,
    /// How often they are looked at, in seconds.
    pub look_s: u64,
    /// True once streams are to end.
    pub stopped: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl DraResourceHealth for Health {
    type NodeWatchResourcesStream = BoxStream<'static, Result<NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let stream = unfold((self.clone(), true), |(mut health, is_first)| async move {
            if !is_first {
                tokio::select! {
                    Ok(()) = health.looked_at_s.changed() => {}
                    _ = health.stopped.wait_for(|is_stopped| *is_stopped) => return None,
                }
            }
            let looked_at_s = *health.looked_at_s.borrow_and_update();
            let report = report(&health.tenants.boards(), &health.pool, looked_at_s, health.look_s);
            Some((Ok(report), (health, false)))
        });
        Ok(Response::new(stream.boxed()))
    }
}

/// The service under the name of a later version.
macro_rules! renamed {
    ($(#[$doc:meta] $name:ident: $text:ident),*) => {$(
        #[$doc]
        #[derive(Clone)]
        pub struct $name(pub DraResourceHealthServer<Health>);

        impl NamedService for $name {
            const NAME: &'static str = $text;
        }

        impl Service<http::Request<tonic::body::Body>> for $name {
            type Response = http::Response<tonic::body::Body>;
            type Error = Infallible;
            type Future = <DraResourceHealthServer<Health> as Service<http::Request<tonic::body::Body>>>::Future;

            fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
                Service::<http::Request<tonic::body::Body>>::poll_ready(&mut self.0, context)
            }

            fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Self::Future {
                let known = request.uri().path().replacen($text, V1_ALPHA_1, 1);
                if let Ok(uri) = known.parse() {
                    *request.uri_mut() = uri;
                }
                self.0.call(request)
            }
        }
    )*};
}

renamed! {
    /// Version v1.
    HealthV1: V1,
    /// Version v1beta1.
    HealthV1Beta1: V1_BETA_1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tests::h200;

    #[test]
    fn health_is_that_of_the_taints() {
        let ill = Board { fault: Some("x".repeat(2000)), ..h200(1) };
        let boards = [h200(0), ill];
        let all = report(&boards, "node-a", 7, 30).devices;
        assert_eq!(all.len(), 4);
        let tainted: Vec<String> = crate::device::slices("node-a", &boards, 1)
            .into_iter()
            .flat_map(|spec| spec.devices.unwrap_or_default())
            .filter(|device| device.taints.is_some())
            .map(|device| device.name)
            .collect();
        for one in all {
            let device = one.device.clone().unwrap();
            assert_eq!(device.pool_name, "node-a");
            assert_eq!((one.last_updated_time, one.health_check_timeout_seconds), (7, 90));
            let is_ill = tainted.contains(&device.device_name);
            let status = if is_ill { HealthStatus::Unhealthy } else { HealthStatus::Healthy };
            assert_eq!(one.health(), status);
            assert_eq!(one.message.len(), if is_ill { 1024 } else { 0 });
        }
        // Never below the kubelet's own, nor so large that it overflows.
        assert_eq!(report(&boards, "n", 0, 1).devices[0].health_check_timeout_seconds, 30);
        assert!(report(&boards, "n", 0, u64::MAX).devices[0].health_check_timeout_seconds > 0);
    }
}
