// The page at /docs: Swagger UI over the server's own description. Nothing from elsewhere.

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#interface",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  validatorUrl: null, // would show the address of the description to another server
});
