//! Hosts replicas: joins consensus with the engine and the root state machine, behind gRPC
