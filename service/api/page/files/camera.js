// The camera, where the browser has one and the page may use it: over HTTPS, or from this machine.

/** Show the camera in `form` once `opener` is clicked; pass what it sees to `take` on submit. */
export function camera(opener, form, take, fail) {
  if (!navigator.mediaDevices) return;
  opener.hidden = false;
  const video = form.querySelector("video");

  opener.addEventListener("click", async () => {
    try {
      video.srcObject = await navigator.mediaDevices.getUserMedia({
        video: { facingMode: "environment" },
      });
      await video.play();
      form.hidden = false;
      opener.hidden = true;
    } catch (error) {
      fail(`camera: ${error.message}`);
    }
  });

  form.addEventListener("reset", () => {
    for (const track of video.srcObject.getTracks()) track.stop();
    form.hidden = true;
    opener.hidden = false;
    opener.focus();
  });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const still = document.createElement("canvas");
    still.width = video.videoWidth;
    still.height = video.videoHeight;
    still.getContext("2d").drawImage(video, 0, 0);
    still.toBlob((blob) => take(new File([blob], "camera.jpg", { type: blob.type })), "image/jpeg");
  });
}
