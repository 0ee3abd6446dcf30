// The page at /docs: Swagger UI with the OpenAPI document of this server.

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#interface",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  validatorUrl: null, // the validator is a third party's server
});
