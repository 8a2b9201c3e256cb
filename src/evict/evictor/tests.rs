mod drains;
mod methods;
mod taints;
