//! The kubelet's protocols, from `proto/`.
#![allow(missing_docs, clippy::all)]

/// The plugin watcher.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// The calls for allocated devices.
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// The health of devices.
pub mod health {
    tonic::include_proto!("v1alpha1");
}

/// What pods have.
pub mod podresources {
    tonic::include_proto!("v1");
}

/// Device plugins.
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}
