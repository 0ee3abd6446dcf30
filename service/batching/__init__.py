"""Forms batches with a queue and a policy; both are independent of HTTP and devices."""
